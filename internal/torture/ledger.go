package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// ledger is a file of JSON lines that only grows. A line is in the file before the
// request that it tells of is answered.
type ledger[T any] struct {
	mu    sync.Mutex
	file  *os.File
	lines []T
}

func openLedger[T any](path string) (*ledger[T], error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a ledger: %w", err)
	}
	return &ledger[T]{file: file}, nil
}

// write appends one line.
func (l *ledger[T]) write(line T) error {
	text, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("write a ledger: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	if _, err := l.file.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("write a ledger: %w", err)
	}
	return nil
}

// size is how many lines there are so far.
func (l *ledger[T]) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines)
}

// all are the lines so far, oldest first.
func (l *ledger[T]) all() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]T(nil), l.lines...)
}
