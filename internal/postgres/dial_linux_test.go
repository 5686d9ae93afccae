package postgres

import (
	"net"
	"syscall"
	"testing"
)

// What is sent to a server that is gone is given up after 10 s.
func TestConnectionsAreGivenUp(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := dialer().DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	err = raw.Control(func(fd uintptr) {
		for name, option := range map[string]int{
			"user timeout": tcpUserTimeout, "idle": syscall.TCP_KEEPIDLE, "interval": syscall.TCP_KEEPINTVL, "probes": syscall.TCP_KEEPCNT,
		} {
			got[name], _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, option)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "options", got, map[string]int{"user timeout": 10_000, "idle": 10, "interval": 5, "probes": 3})
}
