package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/leatfs/leatfs/fs"
)

// syncMessage is one line of the answer to /sync and /drain: progress, and at last a result. What ends
// without a result was broken off: the next worker can be asked.
type syncMessage struct {
	Progress *fs.Ledger `json:"progress,omitempty"`
	Result   *fs.Ledger `json:"result,omitempty"` // what is left
	TimedOut bool       `json:"timed_out,omitempty"`
	Error    string     `json:"error,omitempty"`
}

// finish makes it the last message.
func (m *syncMessage) finish(res *fs.SyncResult, err error) {
	m.Result = &res.Left
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		m.TimedOut = true
	case err != nil:
		m.Error = err.Error()
	}
}

// changeAnswer answers /retry and /discard.
type changeAnswer struct {
	Count  int      `json:"count"` // that it was done for
	Errors []string `json:"errors,omitempty"`
}

// ledgerHandlers are what can be asked of a mount about what is not in the bucket yet.
func (d *daemon) ledgerHandlers() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"POST /sync": d.handleSync, "POST /drain": d.handleDrain, "POST /retry": d.handleRetry, "POST /discard": d.handleDiscard,
		"GET /ledger": d.handleLedger,
	}
}

func (d *daemon) handleSync(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	if t := r.URL.Query().Get("timeout"); t != "" {
		wait, err := time.ParseDuration(t)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	res, err := d.fs.Sync(ctx, func(l fs.Ledger) {
		_ = out.Encode(syncMessage{Progress: &l}) // who asks may be gone
		_ = http.NewResponseController(w).Flush()
	})
	if r.Context().Err() != nil {
		return // who asked is gone, or this process is about to be
	}
	var m syncMessage
	m.finish(&res, err)
	_ = out.Encode(m)
}

// answerJSON answers with a value, or with the error that it could not be had for.
func answerJSON(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // who asks may be gone
}

// ledgerMax is how many entries are told at most.
const ledgerMax = 100_000

func (d *daemon) handleLedger(w http.ResponseWriter, _ *http.Request) {
	l, err := d.fs.Ledger(ledgerMax)
	answerJSON(w, l, err)
}

func (d *daemon) handleRetry(w http.ResponseWriter, r *http.Request) {
	n, err := d.fs.Retry(r.Context(), r.URL.Query().Get("path"))
	if errors.Is(err, fs.ErrNothingLocal) {
		answerJSON(w, changeAnswer{Errors: []string{err.Error()}}, nil)
		return
	}
	answerJSON(w, changeAnswer{Count: n}, err)
}

func (d *daemon) handleDiscard(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	paths := q["path"]
	if q.Get("all") != "" {
		l, err := d.fs.Ledger(ledgerMax)
		if err != nil {
			answerJSON(w, nil, err)
			return
		}
		for _, e := range l.Entries {
			if e.Kind != "directory" {
				paths = append(paths, e.Path)
			}
		}
	}
	var a changeAnswer
	for last := q.Get("all") == ""; ; last = true {
		var failed []string
		a.Errors = nil
		for _, p := range paths {
			err := d.fs.Discard(r.Context(), p)
			switch {
			case err == nil:
				a.Count++
			case errors.Is(err, fs.ErrNothingLocal) && q.Get("all") != "": // published, or gone with another, meanwhile
			default:
				failed = append(failed, p)
				a.Errors = append(a.Errors, err.Error())
			}
		}
		if paths = failed; last || len(failed) == 0 {
			break // else it may have been in the way of another
		}
	}
	answerJSON(w, a, nil)
}
