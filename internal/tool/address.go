package tool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"code.dny.dev/ssrf"
)

// controlFunc refuses addresses. It sees the address that is dialled, after name
// resolution, so neither a redirect nor a second DNS answer gets around it.
type controlFunc func(network, address string, c syscall.RawConn) error

// linkLocal is where cloud metadata services live. Nothing opens it.
var linkLocal = [...]netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10")}

// private is what AllowPrivate opens.
var private = [...]netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fc00::/7"),
}

// newGuardian refuses every special-purpose address but those that the
// configuration opens, and all ports but 80, 443 and those that an allowed host
// names; in opened networks any port goes.
func newGuardian(cfg Config) controlFunc {
	ports := append([]uint16{80, 443}, hostPorts(cfg.AllowHosts)...)
	opened := slices.Clone(cfg.AllowNets)
	guard := ssrf.New(ssrf.WithPorts(ports...))
	if cfg.AllowPrivate {
		opened = append(opened, private[:]...)
		guard = ssrf.New(ssrf.WithAnyPort())
	}
	return func(network, address string, c syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%w: %s", ssrf.ErrInvalidHostPort, address)
		}
		contains := func(p netip.Prefix) bool { return p.Contains(at.Addr()) }
		if slices.ContainsFunc(opened, contains) && !slices.ContainsFunc(linkLocal[:], contains) {
			return nil
		}
		return guard.Safe(network, address, c)
	}
}

// errHostNotAllowed marks a host that the list of allowed hosts lacks.
var errHostNotAllowed = errors.New("host not allowed")

// AddressRefused reports whether err comes of a connection that was not made
// because the configuration does not let tools live there.
func AddressRefused(err error) bool {
	for _, refusal := range []error{errHostNotAllowed, ssrf.ErrProhibitedIP, ssrf.ErrProhibitedPort, ssrf.ErrProhibitedNetwork, ssrf.ErrInvalidHostPort} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// dialer connects to what the configuration allows. Every hop of a redirect
// comes through here: the name is held against the list, and each address that
// it resolves to against the guardian, in the moment of connecting.
type dialer struct {
	net.Dialer

	hosts []string
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if !hostAllowed(d.hosts, address) {
		return nil, errHostNotAllowed
	}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// hostAllowed holds the host and port of a request against patterns of Config.AllowHosts.
func hostAllowed(patterns []string, address string) bool {
	if len(patterns) == 0 {
		return true
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		name, only := splitPattern(pattern)
		if only != "" && only != port {
			return false
		}
		if suffix, ok := strings.CutPrefix(name, "*"); ok {
			return strings.HasPrefix(suffix, ".") && strings.HasSuffix(host, suffix) && len(host) > len(suffix)
		}
		return name == host
	})
}

// splitPattern splits a pattern at its port, "" if it has none.
func splitPattern(pattern string) (host, port string) {
	host, port, err := net.SplitHostPort(pattern)
	if err != nil {
		host, port = strings.Trim(pattern, "[]"), ""
	}
	return strings.ToLower(strings.TrimSuffix(host, ".")), port
}

// hostPorts are the ports that patterns name.
func hostPorts(patterns []string) []uint16 {
	var ports []uint16
	for _, pattern := range patterns {
		_, port := splitPattern(pattern)
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			ports = append(ports, uint16(n))
		}
	}
	return ports
}
