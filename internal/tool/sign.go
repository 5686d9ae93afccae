package tool

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Prefixes of keys as Standard Webhooks writes them. Secrets without one are the
// bytes of the key.
const (
	symmetricKey  = "whsec_" // of HMAC-SHA256, in base64
	asymmetricKey = "whsk_"  // of ed25519
)

// sign sets the headers of Standard Webhooks 1.0, by which a tool's server knows
// that loopd sent the request: an HMAC-SHA256 over "id.timestamp.body". The id is
// the idempotency key, and so the same in every attempt. The URL is not signed.
func sign(h http.Header, secret, id string, now time.Time, body []byte) error {
	key, err := signingKey(secret)
	if err != nil {
		return err
	}
	at := strconv.FormatInt(now.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return nil
}

func signingKey(secret string) ([]byte, error) {
	if strings.HasPrefix(secret, asymmetricKey) {
		return nil, errors.New("an ed25519 key (" + asymmetricKey + ") cannot sign for a tool; use a " + symmetricKey + " secret")
	}
	text, ok := strings.CutPrefix(secret, symmetricKey)
	if !ok {
		text = secret
	}
	if text == "" {
		return nil, errors.New("the signing secret is empty")
	}
	if !ok {
		return []byte(secret), nil
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("what follows %s in the signing secret is not base64", symmetricKey) // the cause would quote it
	}
	return key, nil
}
