package archtest

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// mayImport lists, for each package of ours, which others of ours it may import.
// A key that ends in "/*" holds for all folders below it. Arrows go down only,
// and never sideways within a level. The tests of a package may import more:
// see testOnly.
var mayImport = map[string][]string{
	// L0: the pure core.
	"internal/loop": {},

	// L1: they perform, each in its own world.
	"internal/engine":            {"internal/engine/traffic", "internal/label", "internal/loop"},
	"internal/engine/traffic":    {"internal/loop"},
	"internal/engine/enginetest": {"internal/engine", "internal/loop"},
	"internal/postgres":          {"internal/loop", "internal/postgres/db", "migrations"},
	"internal/postgres/db":       {},
	"internal/postgres/pgtest":   {"internal/devpg"},
	"internal/provider":          {"internal/loop"},
	"internal/provider/*":        {"internal/loop", "internal/provider"},
	"internal/tool":              {"internal/loop"},
	"internal/tool/*":            {"internal/loop", "internal/tool"},
	"internal/pricing":           {"internal/loop"},
	"internal/rule":              {"internal/loop"},
	"migrations":                 {},

	// L2: what the outside talks to.
	"internal/server": {"api/loopd/v1", "api/openapi", "internal/label", "internal/loop", "internal/postgres"},
	"internal/jobs":   {"internal/loop", "internal/postgres"},

	// Beside the levels: they know nothing of loopd.
	"api/loopd/v1":            {},
	"api/openapi":             {"api/loopd/v1"},
	"internal/archtest":       {},
	"internal/demo":           {"api/loopd/v1"}, // a client
	"internal/devpg":          {},
	"internal/label":          {},
	"internal/telemetry":      {},
	"internal/torture":        {"api/loopd/v1", "internal/devpg"}, // a judge that shares nothing with what it judges
	"internal/torture/seeded": {},
	"internal/tools/*":        {},
	"internal/tools/obscheck": {"api/loopd/v1", "internal/demo", "internal/devpg"}, // a client, and who breaks what it talks to
	// Drives the adapter in a conformance suite written by others.
	"internal/tools/mcpclient": {"internal/loop", "internal/tool", "internal/tool/mcp"},
}

// wiring is the only package that may import every other: L3.
const wiring = "cmd/loopd"

// testOnly may be imported by the tests of any package, besides what the package
// itself may import.
var testOnly = []string{
	"internal/engine/enginetest", "internal/postgres/pgtest", "internal/provider/providertest",
	"internal/devpg", "migrations",
}

// loopImports is all that the core may import. None of it does I/O, knows the
// time of day, starts anything or is random.
var loopImports = []string{
	"bytes", "cmp", "compress/flate", "crypto/sha256", "encoding/binary", "encoding/hex", "encoding/json", "errors", "fmt", "hash",
	"iter", "maps", "math", "math/big", "math/bits", "reflect", "regexp", "slices", "sort", "strconv", "strings",
	"time", "unicode", "unicode/utf8", "golang.org/x/text/unicode/norm",
}

// confined names the packages of ours that alone may import a library: its types
// stop at their border. None named means nobody. Keys are prefixes of import paths.
var confined = map[string][]string{
	"github.com/anthropics/":           {}, // providers speak HTTP themselves; see their package doc
	"github.com/openai/":               {},
	"cel.dev/cel-go":                   {"internal/rule"},
	"github.com/getkin/":               {"internal/tool"},
	"github.com/modelcontextprotocol/": {"internal/tool/mcp"},
	"github.com/spf13/":                {"cmd/loopd"},
	"github.com/pressly/":              {"internal/postgres", "migrations", "cmd/loopd"},
}

// checkLayers holds a file to mayImport.
func checkLayers(s source) []string {
	if s.file == nil || s.dir() == wiring {
		return nil
	}
	allowed, known := allowedOf(s.dir())
	if !known {
		return []string{s.at(s.file.Name, "package %s has no level: give it one in internal/archtest and in ARCHITECTURE.md", s.dir())}
	}
	var faults []string
	for _, spec := range s.file.Imports {
		ours, ok := strings.CutPrefix(unquote(spec.Path.Value), module)
		if !ok || ours == s.dir() || slices.Contains(allowed, ours) || s.test() && slices.Contains(testOnly, ours) {
			continue
		}
		faults = append(faults, s.at(spec, "%s may not import %s, only %v", s.dir(), ours, allowed))
	}
	return faults
}

// allowedOf finds what a package may import, by its name or by the pattern of
// the folder it is in.
func allowedOf(dir string) (allowed []string, known bool) {
	if allowed, known = mayImport[dir]; known {
		return allowed, true
	}
	allowed, known = mayImport[path.Dir(dir)+"/*"]
	return allowed, known
}

// checkConfined holds a file to confined. Tests may read with any library.
func checkConfined(s source) []string {
	if s.file == nil || s.test() {
		return nil
	}
	var faults []string
	for _, spec := range s.file.Imports {
		for library, owners := range confined {
			if strings.HasPrefix(unquote(spec.Path.Value), library) && !slices.Contains(owners, s.dir()) {
				faults = append(faults, s.at(spec, "%s is for %v only", library, owners))
			}
		}
	}
	return faults
}

// checkPure holds the core to loopImports, and keeps the clock out of it: time
// comes in as an argument.
func checkPure(s source) []string {
	if s.file == nil || s.test() || s.dir() != "internal/loop" {
		return nil
	}
	var faults []string
	for _, spec := range s.file.Imports {
		if name := unquote(spec.Path.Value); !slices.Contains(loopImports, name) {
			faults = append(faults, s.at(spec, "the core is pure: it may not import %s", name))
		}
	}
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	for _, use := range s.uses("time", clock...) {
		faults = append(faults, s.at(use, "the core is pure: time comes in as an argument, not from time.%s", use.Sel.Name))
	}
	return faults
}

func unquote(literal string) string {
	text, _ := strconv.Unquote(literal)
	return text
}
