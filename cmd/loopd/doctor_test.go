package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
)

// doctored runs the doctor in an environment and returns its findings by check.
func doctored(t *testing.T, env map[string]string, args ...string) (map[string]finding, int) {
	t.Helper()
	var out bytes.Buffer
	e := Env{Getenv: func(name string) string { return env[name] }, Stdout: &out, Stderr: io.Discard, Stdin: strings.NewReader("")}
	args = append([]string{"doctor", "--json", "--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"}, args...)
	code := run(t.Context(), args, e)
	var findings []finding
	if err := json.Unmarshal(out.Bytes(), &findings); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	by := map[string]finding{}
	for _, f := range findings {
		by[f.Check] = f
	}
	return by, code
}

func TestDoctorOnAGoodMachine(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	found, code := doctored(t, map[string]string{"LOOPD_DATABASE_URL": pgURL(t), "LOOPD_OPENAI_API_KEY": "a-key-for-tests"},
		"--openai-base-url", "http://"+lis.Addr().String()+"/v1")
	for _, check := range []string{"configuration", "port", "database", "clock", "schema", "notifications", "provider openai"} {
		if f := found[check]; f.Level != levelOK {
			t.Errorf("%s: %+v", check, f)
		}
	}
	if found["durability"].Level != levelWarn { // the tests' Postgres does not sync
		t.Errorf("durability: %+v", found["durability"])
	}
	if code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestDoctorSaysTheFix(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	for name, c := range map[string]struct {
		env         map[string]string
		args        []string
		check, says string
	}{
		"no database":     {nil, nil, "database", "LOOPD_DATABASE_URL"},
		"database away":   {map[string]string{"LOOPD_DATABASE_URL": "postgres://ann:sesame99@" + gone.Addr().String() + "/x"}, nil, "database", "start Postgres"},
		"no provider":     {nil, nil, "providers", "LOOPD_ANTHROPIC_API_KEY"},
		"provider away":   {map[string]string{"LOOPD_OPENAI_API_KEY": "a-key-for-tests"}, []string{"--openai-base-url", "http://" + gone.Addr().String()}, "provider openai", "loopd provider test openai"},
		"wrong flag":      {nil, []string{"--log-format", "xml"}, "configuration", "correct the flag"},
		"wrong variable":  {map[string]string{captureVariable: "yes"}, nil, "configuration", "correct the variable"},
		"wrong providers": {nil, []string{"--providers", "/nowhere.yaml"}, "providers", "correct the member"},
	} {
		found, code := doctored(t, c.env, c.args...)
		f := found[c.check]
		if f.Level != levelFail || !strings.Contains(f.Fix, c.says) || strings.Contains(f.Detail+f.Fix, "sesame99") || code != exitOther {
			t.Errorf("%s: %+v, exit code %d", name, f, code)
		}
	}
}
