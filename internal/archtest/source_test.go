package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// module is the import path that our own packages begin with.
const module = "github.com/loopd/loopd/"

// source is one file of the module. Its path has slashes and begins at the
// module's root.
type source struct {
	path string
	text string
	fset *token.FileSet
	file *ast.File // nil unless it is Go
}

// dir is the folder of the file, which names its package.
func (s source) dir() string { return path.Dir(s.path) }

// test reports whether the file is compiled into tests only.
func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

// written reports whether people wrote the file as Go.
func (s source) written() bool { return s.file != nil && !ast.IsGenerated(s.file) }

// imports maps the name that a file uses for an import to the import's path.
func (s source) imports() map[string]string {
	names := map[string]string{}
	for _, spec := range s.file.Imports {
		importPath, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(importPath)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = importPath
	}
	return names
}

// at says where a node is and what is wrong with it.
func (s source) at(n ast.Node, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", s.path, s.fset.Position(n.Pos()).Line, fmt.Sprintf(format, args...))
}

// parse makes a source of a text. Go that does not parse is an error: a rule
// would otherwise pass because it saw nothing.
func parse(name, text string) (source, error) {
	s := source{path: name, text: text, fset: token.NewFileSet()}
	if path.Ext(name) != ".go" {
		return s, nil
	}
	file, err := parser.ParseFile(s.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, fmt.Errorf("parse %s: %w", name, err)
	}
	s.file = file
	return s, nil
}

// root is the module's root, seen from this package.
const root = "../.."

// load reads every Go, proto and SQL file of the module, for whatever system it
// is compiled. Folders with a go.mod of their own are other modules.
func load(t *testing.T) []source {
	t.Helper()
	var sources []source
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skip(name, entry)
		}
		switch filepath.Ext(name) {
		case ".go", ".proto", ".sql":
		default:
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		s, err := parse(filepath.ToSlash(rel), string(text))
		if err != nil {
			return err
		}
		sources = append(sources, s)
		return nil
	})
	if err != nil {
		t.Fatalf("read the module: %v", err)
	}
	return sources
}

// skip leaves out folders that the module does not compile.
func skip(name string, entry fs.DirEntry) error {
	if name == root {
		return nil
	}
	switch base := entry.Name(); {
	case strings.HasPrefix(base, "."), base == "testdata", base == "third_party", base == "bin":
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

// line says which line is wrong, in a file that is not Go.
func (s source) line(number int, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", s.path, number, fmt.Sprintf(format, args...))
}
