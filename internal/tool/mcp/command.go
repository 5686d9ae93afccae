package mcp

import (
	"context"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// terminateTimeout is what a command gets to end by itself when its input ends,
// and again when it is told to.
const terminateTimeout = 2 * time.Second

// pipe starts a command and carries messages over its standard input and output,
// watching them as wire does over HTTP.
type pipe struct {
	sdk.Connection

	cmd *exec.Cmd

	mu      sync.Mutex
	waiting map[jsonrpc.ID]*flight
}

// newPipe prepares a command in a process group of its own, so that whatever it
// starts ends with it.
func newPipe(ctx context.Context, words, env []string) *pipe {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), words[0], words[1:]...) //nolint:gosec // a person wrote it, and the operator allowed commands
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return &pipe{cmd: cmd, waiting: map[jsonrpc.ID]*flight{}}
}

// Connect implements the SDK's Transport: it starts the command.
func (p *pipe) Connect(ctx context.Context) (sdk.Connection, error) {
	conn, err := (&sdk.CommandTransport{Command: p.cmd, TerminateDuration: terminateTimeout}).Connect(ctx)
	if err != nil {
		return nil, err
	}
	p.Connection = conn
	return p, nil
}

// Write implements the SDK's Connection.
func (p *pipe) Write(ctx context.Context, message jsonrpc.Message) error {
	if call, ok := message.(*jsonrpc.Request); ok && call.IsCall() {
		f := flightOf(ctx)
		if err := f.post(call.ID); err != nil {
			return err
		}
		f.markSent() // from here on nobody knows how much the command has read
		p.mu.Lock()
		p.waiting[call.ID] = f
		p.mu.Unlock()
		context.AfterFunc(ctx, func() { p.take(call.ID) })
	}
	return p.Connection.Write(ctx, message)
}

// Read implements the SDK's Connection.
func (p *pipe) Read(ctx context.Context) (jsonrpc.Message, error) {
	message, err := p.Connection.Read(ctx)
	if answer, ok := message.(*jsonrpc.Response); ok && err == nil {
		if f := p.take(answer.ID); f != nil {
			f.event("", len(answer.Result))
			f.observe(answer)
		}
	}
	return message, err
}

// take ends the wait for an answer.
func (p *pipe) take(id jsonrpc.ID) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.waiting[id]
	delete(p.waiting, id)
	return f
}

// kill ends what is left of the command's process group.
func (p *pipe) kill() {
	if p.cmd.Process != nil {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // an error means that nothing is left
	}
}
