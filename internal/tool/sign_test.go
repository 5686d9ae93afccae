package tool

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// The vector that the reference libraries of Standard Webhooks are tested with.
func TestSignVector(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	err := sign(h, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if err != nil || h.Get("Webhook-Signature") != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" || h.Get("Webhook-Timestamp") != "1614265330" {
		t.Errorf("%v %v", err, h)
	}
}

// A receiver of Standard Webhooks accepts a call, whatever carries its arguments.
func TestSignedCalls(t *testing.T) {
	t.Parallel()
	raw := "a raw signing key"
	for secret, key := range map[string]string{"whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef01234567")): "0123456789abcdef01234567", raw: raw} {
		for _, method := range []string{"POST", "GET"} {
			for _, effect := range []loop.Effect{idempotent, irreversible} {
				verified := false
				at, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					sent, _ := strconv.ParseInt(r.Header.Get("webhook-timestamp"), 10, 64)
					mac := hmac.New(sha256.New, []byte(key))
					_, _ = io.WriteString(mac, r.Header.Get("webhook-id")+"."+r.Header.Get("webhook-timestamp")+"."+string(body))
					verified = r.Header.Get("webhook-signature") == "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) &&
						time.Since(time.Unix(sent, 0)).Abs() < 5*time.Minute && r.Header.Get("webhook-id") == r.Header.Get("Idempotency-Key")
				})
				req := request(effect, method, at, `{"a":1}`)
				req.Spec.HTTP.SigningSecret = "SIGN"
				r := New(Config{AllowPrivate: true, Secrets: func(name string) (string, bool) { return secret, name == "SIGN" }})
				if reply := r.Call(t.Context(), req); reply.Outcome != loop.OutcomeOK || !verified {
					t.Errorf("%s %s: %+v, verified %v", effect, method, reply, verified)
				}
			}
		}
	}
}

func TestUnusableSigningSecrets(t *testing.T) {
	t.Parallel()
	at, deliveries := serve(t, answer(200, "ok"))
	for secret, want := range map[string]string{
		"whsec_*not-base64*": `secret "SIGN": what follows whsec_ in the signing secret is not base64`,
		"whsec_":             "is empty",
		"":                   "is empty",
		"whsk_c2VjcmV0":      "an ed25519 key",
		"missing":            `secret "SIGN" is not set`,
	} {
		req := request(irreversible, "POST", at, `{}`)
		req.Spec.HTTP.SigningSecret = "SIGN"
		r := New(Config{AllowPrivate: true, Secrets: func(string) (string, bool) { return secret, secret != "missing" }})
		reply := r.Call(t.Context(), req)
		if reply.Outcome != loop.OutcomePermanent || !strings.Contains(told(t, reply).Message, want) || strings.Contains(reply.Content, "c2VjcmV0") {
			t.Errorf("%q: %+v, want %q", secret, reply, want)
		}
	}
	if deliveries() != 0 {
		t.Errorf("%d deliveries", deliveries())
	}
}
