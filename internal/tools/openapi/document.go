package main

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// node is an object of an OpenAPI document.
type node map[string]any

// at walks down the keys, making objects where there are none.
func (n node) at(keys ...string) node {
	for _, key := range keys {
		switch child := n[key].(type) {
		case node:
			n = child
		case map[string]any:
			n[key] = node(child)
			n = child
		default:
			fresh := node{}
			n[key] = fresh
			n = fresh
		}
	}
	return n
}

// list returns the objects of the array at key.
func (n node) list(key string) []node {
	items, _ := n[key].([]any)
	objects := make([]node, 0, len(items))
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			objects = append(objects, m)
		} else if m, ok := item.(node); ok {
			objects = append(objects, m)
		}
	}
	return objects
}

// add appends to the array at key.
func (n node) add(key string, item any) {
	items, _ := n[key].([]any)
	n[key] = append(items, item)
}

// merge joins the documents of the proto files. They describe one package, so
// what has the same name in two of them is the same.
func merge(documents []node) node {
	doc := node{
		"openapi": "3.1.0",
		"info": node{
			"title":   "loopd",
			"version": "v1",
			"description": "Runs LLM agent loops under hard guards. " +
				"Names are lowerCamelCase in JSON; 64-bit integers are strings; money is a decimal string in USD; " +
				"a duration is a string of seconds such as \"30s\". A member that a request does not know is refused.",
		},
	}
	for _, d := range documents {
		maps.Copy(doc.at("paths"), d.at("paths"))
		maps.Copy(doc.at("components", "schemas"), d.at("components", "schemas"))
		for _, tag := range d.list("tags") {
			doc.add("tags", tag)
		}
	}
	return doc
}

// operations yields every operation of the document in the order of paths.
func operations(doc node) iter.Seq[node] {
	return func(yield func(node) bool) {
		paths := doc.at("paths")
		for _, path := range slices.Sorted(maps.Keys(paths)) {
			item := paths.at(path)
			for _, method := range slices.Sorted(maps.Keys(item)) {
				if !yield(item.at(method)) {
					return
				}
			}
		}
	}
}

// collections names the path parameter that follows a collection's segment.
var collections = map[string]string{
	"agents": "agent", "runs": "run", "toolCalls": "call", "tools": "tool", "approvals": "approval", "policies": "policy",
	"budgets": "budget",
}

// renameParameters gives path parameters the name of what they hold. The
// generator calls both ids of "/runs/{name}/toolCalls/{name_1}" after the field
// that holds the whole resource name, which nobody can send.
func renameParameters(paths node) (node, error) {
	renamed := node{}
	for path := range paths {
		segments := strings.Split(path, "/")
		for i, segment := range segments {
			open, end := strings.IndexByte(segment, '{'), strings.IndexByte(segment, '}')
			if open != 0 || end < 0 {
				continue
			}
			name, ok := collections[segments[i-1]]
			if !ok {
				return nil, fmt.Errorf("path %s: no name for the parameter after %q: add it to collections", path, segments[i-1])
			}
			for method := range paths.at(path) {
				renameParameter(paths.at(path, method), segment[1:end], name)
			}
			segments[i] = "{" + name + "}" + segment[end+1:]
		}
		target := renamed.at(strings.Join(segments, "/"))
		maps.Copy(target, paths.at(path))
	}
	return renamed, nil
}

func renameParameter(operation node, old, name string) {
	for _, p := range operation.list("parameters") {
		if p["in"] == "path" && p["name"] == old {
			p["name"] = name
			p["description"] = "The " + name + "'s id: the last segment of its name."
		}
	}
}
