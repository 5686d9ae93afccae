// Package openapi holds the OpenAPI 3.1 description of loopd's REST API, as the
// daemon serves it. It is generated from the protos; see buf.gen.yaml.
package openapi

import _ "embed" // for JSON

// JSON is the description. Treat it as read-only.
//
//go:embed openapi.json
var JSON []byte
