// Command openapi is the protoc plugin that writes api/openapi/openapi.json.
//
// It runs protoc-gen-openapiv3, which writes one document per proto file, and
// makes of them the one document that loopd serves: merged, with path parameters
// named after what they hold, with the limits of the protovalidate rules, with
// the problem document of refused requests, and with what REST adds to gRPC (the
// Idempotency-Key header and server-sent events).
//
// buf runs it; see buf.gen.yaml.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

// run reads a protoc request from in and writes the answer, one file, to out.
func run(in io.Reader, out io.Writer) error {
	request, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	var req pluginpb.CodeGeneratorRequest
	if err := proto.Unmarshal(request, &req); err != nil {
		return fmt.Errorf("decode the request: %w", err)
	}
	files, err := protodesc.NewFiles(&descriptorpb.FileDescriptorSet{File: req.GetProtoFile()})
	if err != nil {
		return fmt.Errorf("link the descriptors: %w", err)
	}
	documents, err := generate(request)
	if err != nil {
		return err
	}
	text, err := finish(documents, files)
	if err != nil {
		return err
	}
	answer, err := proto.Marshal(&pluginpb.CodeGeneratorResponse{
		SupportedFeatures: proto.Uint64(uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)),
		File: []*pluginpb.CodeGeneratorResponse_File{
			{Name: new("openapi.json"), Content: new(text)},
		},
	})
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	_, err = out.Write(answer)
	return err
}

// generate hands the request to protoc-gen-openapiv3 and returns its documents.
func generate(request []byte) ([]node, error) {
	plugin := exec.Command("go", "tool", "protoc-gen-openapiv3")
	plugin.Stdin, plugin.Stderr = bytes.NewReader(request), os.Stderr
	answer, err := plugin.Output()
	if err != nil {
		return nil, fmt.Errorf("run protoc-gen-openapiv3: %w", err)
	}
	var resp pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(answer, &resp); err != nil {
		return nil, fmt.Errorf("decode the answer of protoc-gen-openapiv3: %w", err)
	}
	if resp.Error != nil {
		return nil, fmt.Errorf("protoc-gen-openapiv3: %s", resp.GetError())
	}
	documents := make([]node, len(resp.GetFile()))
	for i, file := range resp.GetFile() {
		if err := json.Unmarshal([]byte(file.GetContent()), &documents[i]); err != nil {
			return nil, fmt.Errorf("decode %s: %w", file.GetName(), err)
		}
	}
	return documents, nil
}

// finish makes the served document of the generated ones.
func finish(documents []node, files *protoregistry.Files) (string, error) {
	doc := merge(documents)
	paths, err := renameParameters(doc.at("paths"))
	if err != nil {
		return "", err
	}
	doc["paths"] = paths
	if err := addRules(doc, files); err != nil {
		return "", err
	}
	if err := addREST(doc, files); err != nil {
		return "", err
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return "", fmt.Errorf("encode the document: %w", err)
	}
	return text.String(), nil
}
