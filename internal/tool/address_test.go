package tool

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// Special addresses are refused before a connection is made, whatever name
// leads to them.
func TestPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	for _, target := range []string{
		"http://127.0.0.1/", "https://127.0.0.1/", "http://localhost/", "http://[::1]/", "http://[::ffff:127.0.0.1]/",
		"http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/", "http://192.168.1.1/", "http://100.64.0.1/", "http://0.0.0.0/",
		"http://[fd00::1]/", "http://[64:ff9b::7f00:1]/",
	} {
		for _, effect := range []loop.Effect{readOnly, irreversible} {
			reply := New(Config{}).Call(t.Context(), request(effect, "POST", target, `{}`))
			if reply.Outcome != loop.OutcomePermanent || told(t, reply).Kind != "address_refused" {
				t.Errorf("%s: %+v", target, reply)
			}
		}
	}
}

// What a developer's machine may reach does not include cloud metadata.
func TestAllowPrivateKeepsMetadataClosed(t *testing.T) {
	t.Parallel()
	guard := newGuardian(Config{AllowPrivate: true})
	for address, allowed := range map[string]bool{
		"127.0.0.1:9999": true, "10.1.2.3:80": true, "[::1]:8080": true, "[fd00::1]:80": true, "93.184.216.34:8443": true,
		"169.254.169.254:80": false, "[fe80::1]:80": false, "224.0.0.1:80": false,
	} {
		network := "tcp4"
		if strings.HasPrefix(address, "[") {
			network = "tcp6"
		}
		if err := guard(network, address, nil); (err == nil) != allowed {
			t.Errorf("%s: %v, want allowed = %v", address, err, allowed)
		}
	}
}

// loopback127 is a runner for which 127.0.0.1 is a public address and all other
// special ones are not.
func loopback127() *Runner {
	return New(Config{Secrets: func(string) (string, bool) { return "s3cret", true }, AllowNets: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
}

func TestRedirectToPrivateAddressIsRefused(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"http://169.254.169.254/latest/", "http://127.0.0.2/", "http://10.0.0.1/"} {
		at, deliveries := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, target, http.StatusFound) })
		reply := loopback127().Call(t.Context(), request(readOnly, "GET", at, ``))
		if reply.Outcome != loop.OutcomePermanent || told(t, reply).Kind != "address_refused" || deliveries() != 1 {
			t.Errorf("%s: %+v, %d deliveries", target, reply, deliveries())
		}
	}
}

func TestProxyOfTheEnvironmentIsIgnored(t *testing.T) {
	t.Parallel()
	for _, c := range []*http.Client{New(Config{}).single, New(Config{}).repeatable} {
		if c.Transport.(*http.Transport).Proxy != nil {
			t.Error("a proxy would dial for loopd, past the address check")
		}
	}
}

func TestRedirectsOfRepeatableCalls(t *testing.T) {
	t.Parallel()
	var header http.Header
	last, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { header = r.Header; answer(200, "there")(w, r) })
	hops := 0
	at, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		target := "/next" + r.URL.Path
		if len(r.URL.Path) >= len("/next")*hops {
			target = last
		}
		http.Redirect(w, r, target, http.StatusTemporaryRedirect)
	})
	call := func(method string) loop.ToolReply {
		req := request(idempotent, method, at, `{}`)
		req.Spec.HTTP.Headers = map[string]string{"X-Api-Key": "${secret:KEY}", "Authorization": "Bearer ${secret:KEY}"}
		return loopback127().Call(t.Context(), req)
	}
	for hops = range 3 { // then one more, to the other host
		if reply := call("POST"); reply.Content != "there" || reply.Outcome != loop.OutcomeOK {
			t.Errorf("%d hops: %+v", hops+1, reply)
		}
		for _, name := range []string{"X-Api-Key", "Authorization", "Idempotency-Key", "Loopd-Run-Id", "Referer"} {
			if v := header.Get(name); v != "" {
				t.Errorf("%d hops: the other host got %s: %s", hops+1, name, v)
			}
		}
	}
	hops = 3
	if reply := call("POST"); reply.Outcome != loop.OutcomePermanent || told(t, reply).Kind != "redirect" {
		t.Errorf("4 hops: %+v", reply)
	}
}

// Inside one host the credentials go along; a redirect that would turn a POST
// into a GET is shown, not followed.
func TestRedirectInsideOneHost(t *testing.T) {
	t.Parallel()
	var key string
	status := http.StatusPermanentRedirect
	at, deliveries := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/new" {
			key = r.Header.Get("X-Api-Key") + r.Header.Get("Idempotency-Key")
			return
		}
		http.Redirect(w, r, "/new", status)
	})
	req := request(idempotent, "POST", at+"/old", `{}`)
	req.Spec.HTTP.Headers = map[string]string{"X-Api-Key": "${secret:KEY}"}
	if reply := loopback127().Call(t.Context(), req); reply.Outcome != loop.OutcomeOK || key != "s3cretloopd:run1:c1-1" {
		t.Errorf("%+v with %q", reply, key)
	}
	status = http.StatusFound
	if reply := loopback127().Call(t.Context(), req); reply.Outcome != loop.OutcomePermanent || reply.Status != 302 || deliveries() != 3 {
		t.Errorf("%+v, %d deliveries", reply, deliveries())
	}
}

func TestCheckRedirectKeepsTLS(t *testing.T) {
	t.Parallel()
	from := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: "a.example"}}
	for _, to := range []*url.URL{{Scheme: "http", Host: "a.example"}, {Scheme: "https", Host: "a.example", User: url.User("x")}} {
		if err := checkRedirect(&http.Request{Method: http.MethodGet, URL: to}, []*http.Request{from}); err == nil {
			t.Errorf("redirect to %s is followed", to)
		}
	}
}

// A name that leads somewhere else the second time does not get a call there: the
// address is judged when it is connected to, and resolved once for that.
func TestRebinding(t *testing.T) {
	t.Parallel()
	public, deliveries := serve(t, answer(200, "ok"))
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(public, "http://"))
	victim, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Close()
	for _, second := range []string{"127.0.0.2", "169.254.169.254", "10.0.0.1", "100.64.0.1", "0.0.0.0"} {
		for _, effect := range []loop.Effect{readOnly, irreversible} {
			resolver := newNames(t, map[string][]string{"rebind.example": {"127.0.0.1", second}})
			cfg := Config{AllowNets: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
			d := newDialer(cfg)
			d.Resolver = resolver.Resolver
			r, before := newRunner(cfg, d), deliveries()
			req := request(effect, "POST", "http://rebind.example:"+port+"/", `{}`)
			if reply := r.Call(t.Context(), req); reply.Outcome != loop.OutcomeOK || resolver.lookups("rebind.example") != 1 {
				t.Fatalf("first: %+v after %d look-ups", reply, resolver.lookups("rebind.example"))
			}
			r.repeatable.CloseIdleConnections()
			reply := r.Call(t.Context(), req)
			if reply.Outcome != loop.OutcomePermanent || told(t, reply).Kind != "address_refused" || deliveries() != before+1 {
				t.Errorf("%s then %s: %+v", effect, second, reply)
			}
		}
	}
	_ = victim.(*net.TCPListener).SetDeadline(time.Now())
	if c, err := victim.Accept(); err == nil {
		t.Errorf("somebody came to the victim: %s", c.RemoteAddr())
	}
}

// Each hop of a redirect is judged anew.
func TestRedirectThatRebinds(t *testing.T) {
	t.Parallel()
	at, deliveries := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, port, _ := net.SplitHostPort(r.Host)
		http.Redirect(w, r, "http://hop.example:"+port+"/", http.StatusFound)
	})
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(at, "http://"))
	cfg := Config{AllowNets: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	d := newDialer(cfg)
	d.Resolver = newNames(t, map[string][]string{"first.example": {"127.0.0.1"}, "hop.example": {"169.254.169.254"}}).Resolver
	reply := newRunner(cfg, d).Call(t.Context(), request(readOnly, "GET", "http://first.example:"+port+"/", ``))
	if reply.Outcome != loop.OutcomePermanent || told(t, reply).Kind != "address_refused" || deliveries() != 1 {
		t.Errorf("%+v, %d deliveries", reply, deliveries())
	}
}

// However an address is spelled, it is not reached.
func TestOddSpellingsOfAddresses(t *testing.T) {
	t.Parallel()
	d := newDialer(Config{})
	d.Resolver = newNames(t, nil).Resolver
	r := newRunner(Config{}, d)
	for _, host := range []string{
		"2130706433", "0177.0.0.1", "0x7f.0.0.1", "127.1", "127.0.0.1.", "[::ffff:169.254.169.254]", "[::ffff:7f00:1]", "[::7f00:1]", "[fe80::1%25lo]",
		"[2002:7f00:1::]", "[64:ff9b::a9fe:a9fe]", "[::]", "[ff02::1]", "198.18.0.1", "192.0.2.1", "255.255.255.255",
	} {
		req := request(irreversible, "POST", "http://"+host+"/", `{}`)
		req.Spec.Name = host // a breaker each
		reply := r.Call(t.Context(), req)
		if kind := told(t, reply).Kind; kind != "address_refused" && kind != "not_sent" {
			t.Errorf("%s: %+v", host, reply)
		}
	}
}

func TestAllowHosts(t *testing.T) {
	t.Parallel()
	at, deliveries := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			_, port, _ := net.SplitHostPort(r.Host)
			http.Redirect(w, r, "http://other.example:"+port+"/", http.StatusFound)
		}
	})
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(at, "http://"))
	hosts := map[string][]string{}
	for _, name := range []string{"shop.example", "a.shop.example", "xshop.example", "other.example"} {
		hosts[name] = []string{"127.0.0.1"}
	}
	cfg := Config{AllowPrivate: true, AllowHosts: []string{"Shop.example", "*.shop.example:" + port, "other.example:1"}}
	d := newDialer(cfg)
	d.Resolver = newNames(t, hosts).Resolver
	r := newRunner(cfg, d)
	for target, allowed := range map[string]bool{"shop.example": true, "SHOP.example": true, "a.shop.example": true, "xshop.example": false, "other.example": false, "127.0.0.1": false} {
		reply := r.Call(t.Context(), request(irreversible, "POST", "http://"+target+":"+port+"/", `{}`))
		if allowed && reply.Outcome != loop.OutcomeOK || !allowed && (reply.Outcome != loop.OutcomePermanent || told(t, reply).Kind != "address_refused") {
			t.Errorf("%s: %+v, want allowed = %v", target, reply, allowed)
		}
	}
	reply := r.Call(t.Context(), request(readOnly, "GET", "http://shop.example:"+port+"/away", ``))
	if reply.Outcome != loop.OutcomePermanent || told(t, reply).Kind != "address_refused" {
		t.Errorf("redirect to another host: %+v", reply)
	}
	if deliveries() != 4 {
		t.Errorf("%d deliveries", deliveries())
	}
}

func TestHostPatterns(t *testing.T) {
	t.Parallel()
	for pattern, hosts := range map[string]map[string]bool{
		"shop.example":     {"shop.example:80": true, "SHOP.example.:443": true, "a.shop.example:80": false, "shop.example.evil:80": false},
		"*.shop.example":   {"a.shop.example:80": true, "a.b.shop.example:80": true, "shop.example:80": false, ".shop.example:80": false, "xshop.example:80": false},
		"shop.example:443": {"shop.example:443": true, "shop.example:80": false},
		"[2001:db8::1]":    {"[2001:db8::1]:80": true, "[2001:db8::2]:80": false},
		"*":                {"shop.example:80": false}, // an empty list allows all
		"":                 {"shop.example:80": false, ":80": true},
	} {
		for host, allowed := range hosts {
			if hostAllowed([]string{pattern}, host) != allowed {
				t.Errorf("%s against %q: want allowed = %v", host, pattern, allowed)
			}
		}
	}
}

// A redirect does not take the secrets of a body along.
func TestRedirectsLeaveSecretBodiesBehind(t *testing.T) {
	t.Parallel()
	other, reached := serve(t, answer(200, "there"))
	at, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other, http.StatusTemporaryRedirect) })
	req := request(idempotent, "POST", at, `{}`)
	req.Spec.HTTP.BodyTemplate = json.RawMessage(`{"key":"${secret:KEY}"}`)
	if reply := loopback127().Call(t.Context(), req); reply.Outcome != loop.OutcomePermanent || told(t, reply).Kind != "redirect" || reached() != 0 {
		t.Errorf("%+v, %d followed", reply, reached())
	}
}

// A port that a listed host names is open, and being listed opens nothing else.
func TestAllowHostsOpensPorts(t *testing.T) {
	t.Parallel()
	guard := newGuardian(Config{AllowHosts: []string{"shop.example:8443", "other.example", "[2001:db8::1]:9000"}})
	for address, allowed := range map[string]bool{
		"93.184.216.34:8443": true, "93.184.216.34:443": true, "93.184.216.34:9000": true, "93.184.216.34:8080": false, "10.0.0.1:8443": false,
	} {
		if err := guard("tcp4", address, nil); (err == nil) != allowed {
			t.Errorf("%s: %v, want allowed = %v", address, err, allowed)
		}
	}
}

func TestAllowNetsOpensOneNetwork(t *testing.T) {
	t.Parallel()
	guard := newGuardian(Config{AllowNets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("169.254.0.0/16")}})
	for address, allowed := range map[string]bool{
		"10.1.2.3:8080": true, "10.2.0.1:80": false, "127.0.0.1:80": false, "169.254.169.254:80": false, "93.184.216.34:8080": false, "no address": false,
	} {
		if err := guard("tcp4", address, nil); (err == nil) != allowed || err != nil && !AddressRefused(err) {
			t.Errorf("%s: %v, want allowed = %v", address, err, allowed)
		}
	}
}

// Others who reach tool servers get the same guard.
func TestTransportIsGuarded(t *testing.T) {
	t.Parallel()
	at, deliveries := serve(t, answer(200, "ok"))
	for cfg, allowed := range map[*Config]bool{{}: false, {AllowPrivate: true}: true, {AllowPrivate: true, AllowHosts: []string{"shop.example"}}: false} {
		transport := cfg.Transport()
		resp, err := (&http.Client{Transport: transport}).Get(at)
		if (err == nil) != allowed || err != nil && !AddressRefused(err) {
			t.Errorf("%+v: %v", cfg, err)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
		transport.CloseIdleConnections()
	}
	if deliveries() != 1 {
		t.Errorf("%d deliveries", deliveries())
	}
}
