// Package telemetry makes the logger and the tracer that the rest of loopd is
// handed. It sets no globals.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/lmittmann/tint"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// scope names the tracer.
const scope = "github.com/loopd/loopd"

// Logger writes to w as "json" or, for people, as "text". level is a slog level.
func Logger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: use debug, info, warn or error", level)
	}
	if format == "text" {
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: l, TimeFormat: "15:04:05.000"})), nil
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l})), nil
}

// Tracer exports spans over OTLP/gRPC, in plain text, to endpoint (host:port),
// or nowhere when it is empty. The function flushes what is left; it blocks
// until its context ends when no collector answers. ids makes the ids of spans.
func Tracer(ctx context.Context, endpoint, version string, ids sdktrace.IDGenerator) (trace.Tracer, func(context.Context) error, error) {
	if endpoint == "" {
		return noop.NewTracerProvider().Tracer(scope), func(context.Context) error { return nil }, nil
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpoint(endpoint), otlptracegrpc.WithInsecure())
	if err != nil {
		return nil, nil, fmt.Errorf("trace exporter for %s: %w", endpoint, err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter), sdktrace.WithIDGenerator(ids),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "loopd"), attribute.String("service.version", version))),
	)
	return provider.Tracer(scope), provider.Shutdown, nil
}
