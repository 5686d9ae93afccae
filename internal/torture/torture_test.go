package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestPlansSurviveTheModel shows that the model server reads from a run's input what
// was drawn.
func TestPlansSurviveTheModel(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		want := drawPlan(r, "17.2")
		got, ok := parsePlan(want.String())
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(plan{}, wish{})); !ok || diff != "" {
			t.Fatalf("%q (-want +got):\n%s", want, diff)
		}
	}
	if _, ok := parsePlan("Where is my order?"); ok {
		t.Error("took a question for a plan")
	}
}

// TestUnpaired shows that the model server notices a transcript which is not whole.
func TestUnpaired(t *testing.T) {
	t.Parallel()
	calls := func(ids ...string) message {
		m := message{Role: "assistant"}
		for _, id := range ids {
			m.ToolCalls = append(m.ToolCalls, struct {
				ID string `json:"id"`
			}{id})
		}
		return m
	}
	result := func(id string) message { return message{Role: "tool", ToolCallID: id} }
	user := message{Role: "user"}
	for name, c := range map[string]struct {
		messages []message
		whole    bool
	}{
		"whole":          {[]message{user, calls("a", "b"), result("b"), result("a"), user, calls("c"), result("c")}, true},
		"result missing": {[]message{user, calls("a", "b"), result("a")}, false},
		"result late":    {[]message{calls("a"), user, result("a")}, false},
		"result twice":   {[]message{calls("a"), result("a"), result("a")}, false},
		"no such call":   {[]message{user, result("a")}, false},
	} {
		if fault := unpaired(c.messages); (fault == "") != c.whole {
			t.Errorf("%s: got %q", name, fault)
		}
	}
}

// TestLinks shows that each trouble does what it is called.
func TestLinks(t *testing.T) {
	t.Parallel()
	t.Run("whole", func(t *testing.T) {
		t.Parallel()
		_, conn := echo(t)
		if got, err := exchange(conn, "hello"); err != nil || got != "hello" {
			t.Errorf("got %q, %v", got, err)
		}
	})
	t.Run("reply to COMMIT withheld", func(t *testing.T) {
		t.Parallel()
		l, conn := echo(t)
		l.set(trouble{commits: 1})
		if got, err := exchange(conn, "Q.begin\x00"); err != nil || got != "Q.begin\x00" {
			t.Errorf("before: got %q, %v", got, err)
		}
		if got, err := exchange(conn, "Q.commit\x00"); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got %q, %v", got, err)
		}
	})
	t.Run("reply to an append withheld", func(t *testing.T) {
		t.Parallel()
		l, conn := echo(t)
		l.set(trouble{commits: 1})
		if got, err := exchange(conn, "B.\x00\rmodel_started\x00"); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got %q, %v", got, err)
		}
	})
	t.Run("down", func(t *testing.T) {
		t.Parallel()
		l, conn := echo(t)
		if _, err := exchange(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		l.set(trouble{down: true})
		if got, err := exchange(conn, "hello"); err == nil {
			t.Errorf("got %q", got)
		}
	})
	t.Run("reset", func(t *testing.T) {
		t.Parallel()
		l, conn := echo(t)
		if _, err := exchange(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		l.resetAll()
		if got, err := exchange(conn, "hello"); err == nil {
			t.Errorf("got %q", got)
		}
	})
	t.Run("stalled, then free", func(t *testing.T) {
		t.Parallel()
		l, conn := echo(t)
		l.set(trouble{stalled: true})
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if got, err := exchange(conn, "hello"); err == nil {
			t.Errorf("stalled: got %q", got)
		}
		_ = conn.SetReadDeadline(time.Time{})
		l.set(trouble{})
		got := make([]byte, 5)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
			t.Errorf("free: got %q, %v", got, err)
		}
	})
	t.Run("late", func(t *testing.T) {
		t.Parallel()
		l, conn := echo(t)
		l.set(trouble{latency: 30 * time.Millisecond})
		began := time.Now()
		if _, err := exchange(conn, "hello"); err != nil || time.Since(began) < 60*time.Millisecond {
			t.Errorf("took %s, %v", time.Since(began), err)
		}
	})
}

// echo connects to a server that says what it hears, through a link.
func echo(t *testing.T) (*link, net.Conn) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	all := &group{}
	all.do(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			all.do(func() { _, _ = io.Copy(conn, conn); conn.Close() })
		}
	})
	l, err := newLink(context.Background(), all, "echo", dialTCP(lis.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", l.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); l.close(); lis.Close(); all.wait() })
	return l, conn
}

func exchange(conn net.Conn, say string) (string, error) {
	if _, err := conn.Write([]byte(say)); err != nil {
		return "", err
	}
	heard := make([]byte, len(say))
	n, err := io.ReadFull(conn, heard)
	return string(heard[:n]), err
}

// TestBadFlags shows that what makes no sense is named, and ends with code 2.
func TestBadFlags(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{"--faults=earthquake": "no fault", "--replicas=0": "--replicas", "--runs=-1": "--runs", "--cluster=x": "with --cluster"} {
		var said bytes.Buffer
		if code := run(context.Background(), []string{flag}, &said); code != 2 || !strings.Contains(said.String(), want) {
			t.Errorf("%s: code %d, %s", flag, code, said.String())
		}
	}
}
