package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/loopd/loopd/internal/postgres/pgtest"
	"github.com/loopd/loopd/migrations"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, migrateTo)) }

// migrateTo brings the database to the newest schema, as loopd does.
func migrateTo(ctx context.Context, url string) (err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	conn := stdlib.OpenDB(*config)
	defer func() { err = errors.Join(err, conn.Close()) }()
	provider, err := goose.NewProvider(goose.DialectPostgres, conn, migrations.FS)
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}

// lawful is what a good run leaves: one irreversible call, approved, delivered, done.
const lawful = `
DROP TRIGGER events_append_only ON events;
INSERT INTO accounts VALUES ('t', 'run:00000000-0000-0000-0000-000000000001', 1000, 300, 0);
INSERT INTO budgets (tenant_id, budget_id, scope, span, amount_pico) VALUES ('t', 'b', 'TENANT', 'TOTAL', 1000);
INSERT INTO budget_accounts (tenant_id, budget_id, starts_at, limit_pico, committed_pico) VALUES ('t', 'b', '0001-01-01', 1000, 300);
INSERT INTO runs (tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema, next_seq, state, phase, stop, ended_at, cost_pico)
	VALUES ('t', '00000000-0000-0000-0000-000000000001', 'agents/a', 1, '"torture 1: final:ok"', '{}', '{}', '', false, 9, 'SUCCEEDED', '', '{}', now(), 300);
INSERT INTO holds (tenant_id, run_id, call, amount_pico, state, settled_pico, settled_at) VALUES ('t', '00000000-0000-0000-0000-000000000001', 1, 500, 'settled', 300, now());
INSERT INTO events SELECT 't', '00000000-0000-0000-0000-000000000001', seq, kind, now(), 1, body::json FROM (VALUES
	(1, 'created', '{}'), (2, 'claimed', '{}'), (3, 'model_started', '{}'), (4, 'model_answered', '{}'),
	(5, 'approval_decided', '{"call_id":"c1","args_hash":"h","approved":true}'), (6, 'call_started', '{"call_id":"c1","attempt":1,"key":"k"}'),
	(7, 'call_finished', '{"call_id":"c1"}'), (8, 'finished', '{"state":"SUCCEEDED"}')) e (seq, kind, body);
INSERT INTO tool_calls (tenant_id, run_id, call_id, ordinal, tool, call, iteration, args_sha256, effect, state, outcome, attempt, idem_key, result, cut, bytes)
	VALUES ('t', '00000000-0000-0000-0000-000000000001', 'c1', 1, 'final', '{}', 1, 'h', 'IRREVERSIBLE', 'SUCCEEDED', 'ok', 1, 'k', '""', false, 0);
INSERT INTO led VALUES ('final', '00000000-0000-0000-0000-000000000001', 'c1', 1, 'k', 'n', true,true, 'yes');
INSERT INTO asked VALUES ('00000000-0000-0000-0000-000000000001', '1', '', 300);
INSERT INTO acked VALUES ('torture-1', '00000000-0000-0000-0000-000000000001', NULL, 0);
INSERT INTO watched SELECT '00000000-0000-0000-0000-000000000001', string_agg(kind, ' ' ORDER BY seq), 8, true, '' FROM events;
INSERT INTO answered VALUES ('k', 1, now());
INSERT INTO faults VALUES ('kill', now() - interval '1 h', now() - interval '1 min');
INSERT INTO approved VALUES ('runs/00000000-0000-0000-0000-000000000001/toolCalls/c1', 'h');`

// extra is another event at the end of the run's journal.
func extra(kind, body string) string {
	return `INSERT INTO events SELECT 't', run_id, next_seq, '` + kind + `', now(), 1, '` + body + `' FROM runs; UPDATE runs SET next_seq = next_seq + 1;`
}

// crimes break one invariant each, which is named by how it begins. Some crimes are
// several, since the facts are about the same thing.
var crimes = map[string]string{
	"I1 a run that":                   `INSERT INTO acked VALUES ('torture-2', 'lost', NULL, 0)`,
	"I1 two runs":                     `INSERT INTO runs SELECT (r2).* FROM (SELECT jsonb_populate_record(r, '{"run_id":"00000000-0000-0000-0000-000000000002"}') AS r2 FROM runs r) x`,
	"I1 one key":                      `INSERT INTO acked VALUES ('torture-1', '00000000-0000-0000-0000-000000000002', NULL, 0)`,
	"I2 a run has neither":            `UPDATE runs SET state = 'QUEUED', ended_at = NULL, stop = NULL, available_at = now() - interval '1 h'`,
	"I2 a run is owned":               `INSERT INTO workers VALUES ('w', now(), now() - interval '1 h'); UPDATE runs SET state = 'RUNNING', ended_at = NULL, lease_owner = 'w'`,
	"I3 a journal":                    `DELETE FROM events WHERE seq = 4`,
	"I3 next_seq":                     `UPDATE runs SET next_seq = 99`,
	"I3 a reader":                     `UPDATE watched SET kinds = 'created finished'`,
	"I3 a stream":                     `UPDATE watched SET ended = false; UPDATE runs SET ended_at = now() - interval '1 h'`,
	"I4 the model":                    `UPDATE asked SET fault = 'no result'`,
	"I4 a call":                       extra("call_finished", `{"call_id":"c1"}`),
	"I5 a request arrived":            `UPDATE led SET intent = 'no'`,
	"I5 a request has no":             `INSERT INTO led SELECT tool, run, 'c9', 1, 'k9', 'n9', false,false, 'unknown' FROM led`,
	"I5 the model":                    `INSERT INTO asked SELECT run, tag, '', 0 FROM asked`,
	"I6 a risky call arr":             `INSERT INTO led SELECT * FROM led`,
	"I6 a call arrived":               `INSERT INTO led SELECT tool, run, call, 2, 'other', n, false,false, 'yes' FROM led`,
	"I6 two calls":                    `INSERT INTO led SELECT tool, run, 'c2', 1, key, 'n2', false,false, 'yes' FROM led`,
	"I6 a risky call was":             `INSERT INTO led SELECT tool, run, call, 2, key, n, false, true, 'yes' FROM led`,
	"I7 a call took":                  `UPDATE tool_calls SET state = 'NOT_SENT'`,
	"I7 a call succeeded":             `DELETE FROM led`,
	"I7 a call is in":                 extra("call_in_doubt", `{"call_id":"c1","attempt":1}`),
	"I8 a call":                       `UPDATE tool_calls SET state = 'STARTED'`,
	"I9 an event":                     `UPDATE events SET epoch = 5 WHERE seq = 3`,
	"I10 an irreversible":             `UPDATE events SET body = '{"call_id":"c1","args_hash":"other","approved":true}' WHERE seq = 5`,
	"I10 a call was approved by":      `DELETE FROM approved`,
	"I10 a call was approved tw":      extra("approval_decided", `{"call_id":"c1","args_hash":"h","approved":true}`),
	"I11 an account is above":         `UPDATE accounts SET limit_pico = 200`,
	"I11 a run that":                  `UPDATE runs SET held_pico = 1`,
	"I11 an account is not":           `UPDATE accounts SET committed_pico = 301; UPDATE runs SET cost_pico = 301`,
	"I11 a run's cost":                `UPDATE runs SET cost_pico = 299`,
	"I11 a budget is above":           `UPDATE budget_accounts SET excess_pico = 500, limit_pico = 200`,
	"I11 a budget's account":          `UPDATE budget_accounts SET held_pico = 7`,
	"I11 a budget does":               `UPDATE budget_accounts SET committed_pico = 299`,
	"I11 less":                        `UPDATE asked SET pico = 301`,
	"I12 something started after an":  `UPDATE acked SET cancelled = now() - interval '1 s'; UPDATE events SET at = now() - interval '1 h' WHERE seq <> 6; UPDATE events SET at = now() WHERE seq = 6`,
	"I12 something started after the": `UPDATE events SET kind = 'cancel_requested' WHERE seq = 2`,
	"I12 an acknowledged":             `UPDATE acked SET cancelled = now() - interval '1 h'; UPDATE events SET at = now() - interval '2 h'`,
	"I12 twins":                       `INSERT INTO led SELECT tool, run, 'c2', 1, 'k2', n, true,true, 'yes' FROM led`,
	"I15 finished":                    extra("claimed", `{}`),
	"I15 the head":                    `UPDATE runs SET state = 'FAILED'`,
	"P2 one call": `INSERT INTO runs SELECT (r2).* FROM (SELECT jsonb_populate_record(r, jsonb_build_object('run_id', id, 'depth', 1, 'parent_run_id', r.run_id, 'root_run_id', r.run_id, 'parent_call_id', 'c1')) AS r2
		FROM runs r, unnest(ARRAY['00000000-0000-0000-0000-000000000002', '00000000-0000-0000-0000-000000000003']) id) x`,
	"P3 rows":      `ALTER TABLE events DROP CONSTRAINT events_tenant_id_run_id_fkey; INSERT INTO events VALUES ('t', '00000000-0000-0000-0000-000000000002', 1, 'created', now(), 0, '{}')`,
	"P3 a journal": child(`'{}'`),
	"P3 a child":   child(`'{}'`),
	"P4 a run":     `UPDATE runs SET priority = 1`,
	"P4 a child":   child(`'{"priority":1}'`),
	"P5 something": `INSERT INTO usage_deleted VALUES ('t', now(), 'agents/a', 'm', 1, 300)`,
}

// child is a child run, with a journal, whose id says that it began in 2074, for which
// no partition is made yet.
func child(with string) string {
	return `INSERT INTO runs SELECT (jsonb_populate_record(r, jsonb_build_object('run_id', '03000000-0000-0000-0000-000000000002', 'depth', 1,
			'parent_run_id', r.run_id, 'root_run_id', r.run_id, 'parent_call_id', 'c1') || ` + with + `::jsonb)).* FROM runs r;
		INSERT INTO events SELECT tenant_id, '03000000-0000-0000-0000-000000000002', seq, kind, at, epoch, body FROM events`
}

// TestInvariantsCanFail commits a crime against every invariant, and shows that the
// judge sees it, and nothing in a good run.
func TestInvariantsCanFail(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), pgtest.Pool(t)
	for _, script := range []string{witnesses, lawful} {
		if _, err := pool.Exec(ctx, script); err != nil {
			t.Fatal(err)
		}
	}
	all, tried := invariants(), map[string]bool{}
	if found, err := judge(ctx, pool, all); err != nil || len(found) > 0 {
		t.Fatalf("a good run: %q, %v", found, err)
	}
	for name, crime := range crimes {
		broken := slices.DeleteFunc(slices.Clone(all), func(i invariant) bool { return !strings.HasPrefix(i.name, name) })
		if len(broken) != 1 {
			t.Fatalf("%q names %d invariants", name, len(broken))
		}
		tried[broken[0].name] = true
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, crime); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if found, err := judge(ctx, tx, broken); err != nil || len(found) == 0 {
			t.Errorf("%s: got %q, %v", name, found, err)
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range all {
		if !tried[i.name] {
			t.Errorf("no crime is against %q", i.name)
		}
	}
}
