package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The channels. Wakes carry nothing; event notices carry the id of the run, and those
// of runs that are given back come again in the form of ReleaseNotice.
const (
	channelWake   = "loopd_wake"
	channelEvents = "loopd_events"
)

// Listen calls wake when something may have become claimable or signalled, and
// once at the start, until ctx ends or the connection fails; it returns why. Calls
// do not overlap.
func (s *Store) Listen(ctx context.Context, wake func()) error {
	wakeUp := func(string) { wake() }
	return s.listen(ctx, channelWake, wake, wakeUp)
}

// ReleaseNotice is what notify of ListenEvents is called with when the run was given
// back with its last events: it has ended, or waits for something. Whoever waits for that
// need not look at the run after each of its commits.
func ReleaseNotice(runID string) string { return "released " + runID }

// ListenEvents calls notify with the id of each run that got events, and with
// ReleaseNotice of each that was given back with them, until ctx ends or the connection
// fails; it returns why. An empty id says that any run may have got some: it comes at
// the start, as nobody listened before. Calls do not overlap.
func (s *Store) ListenEvents(ctx context.Context, notify func(runID string)) error {
	return s.listen(ctx, channelEvents, func() { notify("") }, notify)
}

// listen has a connection of its own, past any pooler.
func (s *Store) listen(ctx context.Context, channel string, started func(), notified func(payload string)) (err error) {
	config, err := pgx.ParseConfig(s.direct)
	if err != nil {
		return fmt.Errorf("direct database URL: %w", err)
	}
	config.ConnectTimeout = connectTimeout
	config.DialFunc = dialer().DialContext
	config.RuntimeParams["application_name"] = "loopd listen"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", channel, err)
	}
	defer func() { err = errors.Join(err, closeConn(conn)) }()
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen on %s: %w", channel, err)
	}
	started()
	// One watch over all: a watch for each notification costs more than the notification.
	unwatch := context.AfterFunc(ctx, func() { _ = conn.PgConn().Conn().SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !unwatch() { // it is closed in good order all the same
			_ = conn.PgConn().Conn().SetDeadline(time.Time{})
		}
	}()
	unwatched := context.WithoutCancel(ctx)
	for {
		notification, err := conn.WaitForNotification(unwatched)
		if err != nil {
			err = cmp.Or(context.Cause(ctx), err)
			return fmt.Errorf("listen on %s: %w", channel, err)
		}
		notified(notification.Payload)
	}
}

func closeConn(conn *pgx.Conn) error {
	if conn.IsClosed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return conn.Close(ctx)
}
