package engine

import (
	"context"
	"fmt"

	"github.com/loopd/loopd/internal/loop"
)

// draw makes sure that the accounts which the run shares with others can pay for the
// call. A refusal goes into the journal, and Next says what comes of it. An account that
// cannot be asked is one without money: nothing is sent.
func (o *owner) draw(ctx context.Context, a loop.CallModel) (drawn bool, err error) {
	if o.e.cfg.Accounts == nil {
		return true, nil
	}
	var refused *loop.AccountRefused
	err = o.patiently(ctx, func(ctx context.Context) (err error) {
		refused, err = o.e.cfg.Accounts.Draw(ctx, o.lease, o.state.AccountNeed(a.Started))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("draw from the shared accounts: %w", err)
	}
	if refused == nil {
		return true, nil
	}
	return false, o.commit(ctx, batch{bodies: []loop.Body{*refused}})
}
