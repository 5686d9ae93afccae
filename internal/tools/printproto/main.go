// Command printproto writes the annotation protos that loopd's own protos
// import, so that buf needs no network and no schema registry.
//
// Every one of them is already linked into loopd as a Go package. printproto
// finds the file descriptors in those packages and prints them as source, so
// that the protos always match the Go types that read them. Comments are not
// part of a descriptor and are lost; the licences stand in third_party/proto.
//
// Usage, from the root of the repository:
//
//	go run -C internal/tools/printproto . ../../../third_party/proto
//
// The versions in this module's go.mod are those of the main module; a test in
// api/loopd/v1 keeps the two from drifting apart.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jhump/protoreflect/v2/protoprint"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	_ "google.golang.org/genproto/googleapis/api/annotations"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: printproto DIRECTORY")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "printproto:", err)
		os.Exit(1)
	}
}

// run prints the files that loopd's protos import, and all they import, into dir.
func run(dir string) error {
	roots := []string{
		"buf/validate/validate.proto",
		"google/api/annotations.proto",
		"google/api/field_behavior.proto",
		"google/api/resource.proto",
	}
	written := make(map[string]bool)
	for _, path := range roots {
		file, err := protoregistry.GlobalFiles.FindFileByPath(path)
		if err != nil {
			return fmt.Errorf("find %s among the linked packages: %w", path, err)
		}
		if err := write(dir, file, written); err != nil {
			return err
		}
	}
	return nil
}

// write prints one file and, depth first, the files it imports. Those under
// google/protobuf are left out: buf has its own.
func write(dir string, file protoreflect.FileDescriptor, written map[string]bool) error {
	path := file.Path()
	if written[path] || strings.HasPrefix(path, "google/protobuf/") {
		return nil
	}
	written[path] = true
	for i := range file.Imports().Len() {
		if err := write(dir, file.Imports().Get(i).FileDescriptor, written); err != nil {
			return err
		}
	}
	var text bytes.Buffer
	text.WriteString("// Printed by internal/tools/printproto from the linked Go package. DO NOT EDIT.\n\n")
	printer := protoprint.Printer{Compact: true}
	if err := printer.PrintProtoFile(file, &text); err != nil {
		return fmt.Errorf("print %s: %w", path, err)
	}
	target := filepath.Join(dir, filepath.FromSlash(path))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("make the folder of %s: %w", path, err)
	}
	if err := os.WriteFile(target, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
