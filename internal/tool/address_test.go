package tool

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"code.dny.dev/ssrf"

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
	guard := newGuardian(true)
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
	return newRunner(Config{Secrets: func(string) (string, bool) { return "s3cret", true }},
		ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(netip.MustParsePrefix("127.0.0.1/32"))).Safe)
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
