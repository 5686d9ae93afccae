package mcp

import (
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/tool"
)

// commandClient talks to this test program as a server on standard input and output.
func commandClient(t *testing.T) (*Client, func(tool string, effect loop.Effect) tool.Request) {
	t.Helper()
	t.Setenv("LOOPD_TEST_SECRET", "hunter2") // of loopd's own environment
	c := newClient(t, func(cfg *Config) {
		cfg.AllowCommands, cfg.CommandEnv = true, []string{"MCP_TEST_SERVER=1"}
	})
	return c, func(tool string, effect loop.Effect) tool.Request {
		req := request("", effect)
		req.Spec.MCP = &loop.MCPSpec{Command: []string{os.Args[0]}, Tool: tool}
		return req
	}
}

func TestACommandSeesNothingOfLoopdsEnvironment(t *testing.T) {
	c, req := commandClient(t)
	reply := c.Call(t.Context(), req("env", loop.ReadOnly))
	if reply.Outcome != loop.OutcomeOK || reply.Content != "MCP_TEST_SERVER=1" {
		t.Errorf("reply = %+v, want the configured environment only", reply)
	}
}

func TestACommandsAnswerIsExact(t *testing.T) {
	c, req := commandClient(t)
	reply := c.Call(t.Context(), req("exact", loop.Irreversible))
	if reply.Outcome != loop.OutcomeOK || reply.Content != `{"id":12345678901234567890}` || reply.Bytes == 0 {
		t.Errorf("reply = %+v", reply)
	}
}

func TestACommandThatDies(t *testing.T) {
	c, req := commandClient(t)
	for effect, want := range map[loop.Effect]loop.Outcome{loop.ReadOnly: loop.OutcomeRetryable, loop.SideEffect: loop.OutcomeUnknown} {
		if reply := c.Call(t.Context(), req("die", effect)); reply.Outcome != want {
			t.Errorf("%s: outcome = %s, want %s: %s", effect, reply.Outcome, want, reply.Content)
		}
		if reply := c.Call(t.Context(), req("env", effect)); reply.Outcome != loop.OutcomeOK {
			t.Errorf("%s: the next call = %+v, want a new process to answer", effect, reply)
		}
	}
}

func TestACommandThatIsNone(t *testing.T) {
	c, _ := commandClient(t)
	req := request("", loop.SideEffect)
	req.Spec.MCP = &loop.MCPSpec{Command: []string{"/does/not/exist"}, Tool: "act"}
	if reply := c.Call(t.Context(), req); reply.Outcome != loop.OutcomeNotSent {
		t.Errorf("outcome = %s, want not_sent: %s", reply.Outcome, reply.Content)
	}
}

func TestCloseEndsWhatACommandStarted(t *testing.T) {
	c, req := commandClient(t)
	reply := c.Call(t.Context(), req("child", loop.SideEffect))
	pid, err := strconv.Atoi(reply.Content)
	if err != nil {
		t.Fatalf("reply = %+v", reply)
	}

	c.Close()

	await(t, "the end of the child", func() bool { return gone(pid) })
}

// gone reports whether a process has ended, reaped or not.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	return syscall.Kill(pid, 0) != nil || len(stat) > 0 && containsZombie(string(stat))
}

func containsZombie(stat string) bool {
	for i := len(stat) - 1; i >= 0; i-- {
		if stat[i] == ')' {
			return i+2 < len(stat) && stat[i+2] == 'Z'
		}
	}
	return false
}
