package providertest

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/loopd/loopd/internal/loop"
)

// short is a timeout that a test waits for.
const short = 50 * time.Millisecond

// statuses checks the class of every status and that none is sent again.
func (s Suite) statuses(t *testing.T) {
	for status, class := range map[int]loop.ErrorClass{
		307: loop.ErrorRequest, 400: loop.ErrorRequest, 401: loop.ErrorAuth, 402: loop.ErrorQuota,
		403: loop.ErrorAuth, 404: loop.ErrorRequest, 408: loop.ErrorNotStarted, 409: loop.ErrorNotStarted,
		413: loop.ErrorRequest, 422: loop.ErrorRequest, 429: loop.ErrorThrottle, 500: loop.ErrorServer,
		502: loop.ErrorServer, 503: loop.ErrorThrottle, 504: loop.ErrorServer, 529: loop.ErrorThrottle,
	} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/elsewhere")
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(status)
			}))
			_, err := s.New(server.URL, Tuning{}).Generate(t.Context(), Ask())
			checkError(t, err, Want{Class: class, RetryAfter: 7 * time.Second})
			if e := modelError(t, err); e.Status != status {
				t.Errorf("status is %d, want %d", e.Status, status)
			}
			if n := len(server.Requests()); n != 1 {
				t.Errorf("sent %d requests, want exactly 1", n)
			}
		})
	}
}

// faults checks answers that are no answers.
func (s Suite) faults(t *testing.T) {
	good := Load(t, s.Recordings, s.Stream+".json").Response.SSE
	cases := []struct {
		name   string
		tuning Tuning
		body   string
		class  loop.ErrorClass
	}{
		{"empty body", Tuning{}, "", loop.ErrorMidStream},
		{"HTML", Tuning{}, "<html><body>Welcome to the airport network</body></html>", loop.ErrorMidStream},
		{"no JSON in an event", Tuning{}, "data: hello\n\n", loop.ErrorMidStream},
		{"an unrelated object", Tuning{}, `{"status":"ok"}`, loop.ErrorMidStream},
		{"half an object", Tuning{}, `{"id":"x","choi`, loop.ErrorMidStream},
		{"too large", Tuning{MaxResponseBytes: int64(len(good) / 2)}, good, loop.ErrorMidStream},
		{"too large without an event", Tuning{MaxResponseBytes: 1000}, "data: " + strings.Repeat("x", 5000), loop.ErrorMidStream},
		{"only comments", Tuning{}, ": keep-alive\n\n: keep-alive\n\n", loop.ErrorMidStream},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w, c.body) }))
			_, err := s.New(server.URL, c.tuning).Generate(t.Context(), Ask())
			checkError(t, err, Want{Class: c.class})
		})
	}
	t.Run("invalid UTF-8", func(t *testing.T) {
		t.Parallel()
		broken := strings.ReplaceAll(good, s.Word, "\xff\xfe"+s.Word)
		if broken == good {
			t.Fatalf("the recording does not say %q", s.Word)
		}
		server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w, broken) }))
		answer, err := s.New(server.URL, Tuning{}).Generate(t.Context(), Ask())
		if err != nil {
			t.Fatalf("Generate: %v", err)
		}
		if !utf8.ValidString(answer.Message.Text()) || !utf8.Valid(answer.Message.Native.JSON) || !strings.Contains(answer.Message.Text(), "\uFFFD"+s.Word) {
			t.Errorf("text is %q", answer.Message.Text())
		}
	})
	t.Run("connection refused", s.refusedConnection)
	t.Run("connection breaks before the answer", s.brokenConnection)
}

// refusedConnection checks that only a call without a connection counts as free.
func (s Suite) refusedConnection(t *testing.T) {
	t.Parallel()
	_, err := s.New("http://127.0.0.1:1", Tuning{}).Generate(t.Context(), Ask())
	checkError(t, err, Want{Class: loop.ErrorNotStarted})
}

// brokenConnection breaks a connection that was good before. Go's transport
// would repeat some requests then; a POST must not be among them.
func (s Suite) brokenConnection(t *testing.T) {
	t.Parallel()
	good := Load(t, s.Recordings, s.Stream+".json")
	var breaks atomic.Bool
	server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if breaks.Load() {
			panic(http.ErrAbortHandler)
		}
		good.ServeHTTP(w, r)
	}))
	p := s.New(server.URL, Tuning{})
	if _, err := p.Generate(t.Context(), Ask()); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	breaks.Store(true)
	_, err := p.Generate(t.Context(), Ask())
	checkError(t, err, Want{Class: loop.ErrorServer})
	if n := len(server.Requests()); n != 2 {
		t.Errorf("%d requests arrived for 2 calls", n)
	}
}

// silence checks every way in which a call is given up.
func (s Suite) silence(t *testing.T) {
	good := Load(t, s.Recordings, s.Stream+".json").Response.SSE
	t.Run("before the first byte", func(t *testing.T) {
		t.Parallel()
		s.waits(t, t.Context(), Tuning{FirstByteTimeout: short}, "", nil, loop.ErrorTimeout)
	})
	t.Run("between two bytes", func(t *testing.T) {
		t.Parallel()
		s.waits(t, t.Context(), Tuning{IdleTimeout: short}, good[:len(good)/2], nil, loop.ErrorTimeout)
	})
	t.Run("deadline of the caller", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), short)
		defer cancel()
		s.waits(t, ctx, Tuning{}, good[:len(good)/2], nil, loop.ErrorTimeout)
	})
	t.Run("cancelled by the caller before the first byte", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		s.waits(t, ctx, Tuning{}, "", cancel, loop.ErrorCancelled)
	})
	t.Run("cancelled by the caller in the middle", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		s.waits(t, ctx, Tuning{}, good[:len(good)/2], cancel, loop.ErrorCancelled)
	})
}

// waits runs a call against a server that sends body, does then, and hangs until
// the client is gone.
func (s Suite) waits(t *testing.T, ctx context.Context, tuning Tuning, body string, then func(), class loop.ErrorClass) {
	t.Helper()
	server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body != "" {
			write(w, body)
		}
		if then != nil {
			then()
		}
		<-r.Context().Done()
	}))
	_, err := s.New(server.URL, tuning).Generate(ctx, Ask())
	checkError(t, err, Want{Class: class})
	if n := len(server.Requests()); n != 1 {
		t.Errorf("sent %d requests, want exactly 1", n)
	}
}
