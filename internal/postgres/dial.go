package postgres

import (
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// peerTimeout is how long sent data may stay unacknowledged, on either side, before
	// the connection is given up. Without it a partition that drops packets in silence
	// holds a connection for a quarter of an hour.
	peerTimeout = 10 * time.Second
	// An idle connection, such as a listener's, sends nothing that could stay
	// unacknowledged: it is probed.
	probeAfter = 10 * time.Second
	probeEvery = 5 * time.Second
	probes     = 3
)

// dialer opens connections that notice when nobody is there any more.
func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: probeEvery, Count: probes},
		Control: func(network, _ string, c syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			var failed error
			err := c.Control(func(fd uintptr) { failed = setPeerTimeout(fd) })
			if err != nil {
				return err
			}
			return failed
		},
	}
}

// bounded makes the sessions of a configuration ones that hold nothing for ever.
func bounded(config *pgx.ConnConfig) {
	config.ConnectTimeout = connectTimeout
	config.DialFunc = dialer().DialContext
	params := config.RuntimeParams
	params["application_name"] = "loopd"
	params["timezone"] = "UTC"
	params["statement_timeout"] = statementTimeout
	params["lock_timeout"] = lockTimeout
	params["idle_in_transaction_session_timeout"] = idleTimeout
	params["tcp_user_timeout"] = peerTimeout.String() // of the server's side
}
