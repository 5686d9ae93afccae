package rule

import (
	"container/list"
	"sync"

	"cel.dev/cel-go/cel"
)

// maxPrograms is how many conditions are kept compiled: more than a deployment
// has agents. One takes a few kilobytes.
const maxPrograms = 1000

// programs keeps the conditions that were used last. Its zero value is empty.
type programs struct {
	mu     sync.Mutex
	byExpr map[string]*list.Element
	recent list.List // of *compiled, last used first
}

type compiled struct {
	expr    string
	program cel.Program
}

func (p *programs) get(expr string) (cel.Program, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.byExpr[expr]
	if !ok {
		return nil, false
	}
	p.recent.MoveToFront(at)
	return at.Value.(*compiled).program, true //nolint:errcheck // put adds nothing else
}

func (p *programs) put(expr string, program cel.Program) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byExpr == nil {
		p.byExpr = map[string]*list.Element{}
	}
	if _, ok := p.byExpr[expr]; ok {
		return // compiled twice at the same time
	}
	p.byExpr[expr] = p.recent.PushFront(&compiled{expr, program})
	if p.recent.Len() > maxPrograms {
		oldest := p.recent.Remove(p.recent.Back())
		delete(p.byExpr, oldest.(*compiled).expr) //nolint:errcheck // see get
	}
}
