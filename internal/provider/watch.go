package provider

import (
	"bytes"
	"context"
	"errors"
	"time"
)

// Causes with which the watch cancels a request.
var (
	errSilent  = errors.New("the provider sent nothing for too long")
	errEndless = errors.New("the answer took longer than any answer may")
)

// piece is how many bytes of an unfinished line count as progress: so many that
// a trickle of single bytes does not, so few that a slow network does.
const piece = 4 << 10

// watch cancels a request that makes no progress. Progress is a line of data, or
// a piece of a long one. A byte alone is none, so a trickle ends after IdleTimeout.
// A comment only says that somebody is there: until ThinkTimeout after the last
// data it counts for a model that thinks, and then no more.
type watch struct {
	silence *time.Timer // fires when there was no progress for too long
	overall *time.Timer // fires when the whole call has taken too long
	idle    time.Duration
	think   time.Duration
	since   time.Time // of the last progress
	begun   bool      // data has come
	line    line      // what the line being read is
	loose   int       // bytes of it that have not counted yet
}

// line is what a line of the body has turned out to be.
type line int

const (
	lineBlank   line = iota // so far
	lineComment             // of server-sent events: it begins with a colon
	lineData
)

func (t Transport) watch(cancel context.CancelCauseFunc) *watch {
	return &watch{
		silence: time.AfterFunc(t.FirstByteTimeout, func() { cancel(errSilent) }),
		overall: time.AfterFunc(t.CallTimeout, func() { cancel(errEndless) }),
		idle:    t.IdleTimeout,
		think:   t.ThinkTimeout,
	}
}

func (w *watch) stop() {
	w.silence.Stop()
	w.overall.Stop()
}

// admitted notes that the provider took the request: its model may think now.
func (w *watch) admitted() {
	w.since = time.Now()
	w.silence.Reset(w.think)
}

// progress buys another IdleTimeout.
func (w *watch) progress() {
	w.begun, w.loose, w.since = true, 0, time.Now()
	w.silence.Reset(w.idle)
}

// patience lets the present silence last ThinkTimeout.
func (w *watch) patience() { w.silence.Reset(max(time.Until(w.since.Add(w.think)), 0)) }

// saw takes note of bytes of the body.
func (w *watch) saw(p []byte) {
	for len(p) > 0 {
		part, rest, ended := bytes.Cut(p, []byte("\n"))
		if text := bytes.TrimLeft(part, " \t\r"); w.line == lineBlank && len(text) > 0 {
			w.line = lineData
			if text[0] == ':' {
				w.line = lineComment
			}
		}
		switch w.line {
		case lineData:
			w.loose += len(part)
			if ended || !w.begun || w.loose >= piece {
				w.progress()
			}
		case lineComment:
			if ended {
				w.patience()
			}
		case lineBlank: // ends an event that has counted, or fills time
		}
		if ended {
			w.line = lineBlank
		}
		p = rest
	}
}
