package main

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// addREST describes what REST has and gRPC has not.
func addREST(doc node, files *protoregistry.Files) error {
	problem, err := problemSchema(files)
	if err != nil {
		return err
	}
	doc.at("components", "schemas")["Problem"] = problem
	for operation := range operations(doc) {
		method, err := method(operation, files)
		if err != nil {
			return err
		}
		operation.at("responses")["default"] = node{
			"description": "The request was refused.",
			"content": node{"application/problem+json": node{
				"schema": node{"$ref": "#/components/schemas/Problem"},
			}},
		}
		if method.Input().Fields().ByName("request_id") != nil {
			operation.add("parameters", idempotencyKey())
		}
		if field := method.Input().Fields().ByName("after_seq"); field != nil {
			addEventStream(operation)
		}
	}
	return nil
}

// problemSchema is the body of every refused request (RFC 9457). Its reasons are
// those of the ErrorReason enum.
func problemSchema(files *protoregistry.Files) (node, error) {
	desc, err := files.FindDescriptorByName(pkg + ".ErrorReason")
	if err != nil {
		return nil, fmt.Errorf("find the reasons of errors: %w", err)
	}
	values := desc.(protoreflect.EnumDescriptor).Values()
	reason := node{"type": "string", "description": "The machine-readable reason."}
	for i := 1; i < values.Len(); i++ {
		reason.add("enum", strings.TrimPrefix(string(values.Get(i).Name()), "ERROR_REASON_"))
	}
	text := func(description string) node { return node{"type": "string", "description": description} }
	return node{
		"type":        "object",
		"description": "Problem says why a request was refused (RFC 9457).",
		"required":    []string{"type", "title", "status", "reason"},
		"properties": node{
			"type":       text("Address of a page about the reason."),
			"title":      text("The reason in a few words. It does not change from request to request."),
			"status":     node{"type": "integer", "description": "The HTTP status."},
			"detail":     text("What is wrong with this request, and how to mend it."),
			"reason":     reason,
			"retryable":  node{"type": "boolean", "description": "True: the same request may succeed later."},
			"request_id": text("Id of this request in loopd's log."),
			"metadata": node{
				"type": "object", "description": "Facts about the problem, by reason.",
				"additionalProperties": node{"type": "string"},
			},
			"errors": node{
				"type": "array", "description": "The fields that break their rules.",
				"items": node{
					"type": "object",
					"properties": node{
						"pointer": text("JSON pointer to the field in the request."),
						"detail":  text("What is wrong with it, and how to mend it."),
					},
				},
			},
		},
	}, nil
}

func idempotencyKey() node {
	return node{
		"name": "Idempotency-Key", "in": "header",
		"description": "The same as requestId, bare or in double quotes. An answer given again has the header Idempotency-Replayed: true.",
		"schema":      node{"type": "string", "maxLength": 130},
	}
}

// addEventStream describes server-sent events beside the operation's JSON.
func addEventStream(operation node) {
	operation.add("parameters", node{
		"name": "Last-Event-ID", "in": "header",
		"description": "The same as afterSeq, as browsers send it when they connect again.",
		"schema":      node{"type": "string", "pattern": "^[0-9]+$"},
	})
	operation.at("responses", "200", "content")["text/event-stream"] = node{"schema": node{
		"type": "string",
		"description": "Server-sent events, when the request accepts text/event-stream. Each event has the journal's seq as its id, " +
			"the event's kind as its name and an Event as its data. A comment comes at least every 15 seconds. " +
			"After the run's last event comes one named \"end\", whose data is an End, and the stream is complete.",
	}}
}
