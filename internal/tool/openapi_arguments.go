package tool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// parameters turns the parameters of the operation, and those of its path that it
// does not replace, into arguments.
func (o *operation) parameters() error {
	merged := map[string]*openapi3.Parameter{}
	for _, list := range []openapi3.Parameters{o.item.Parameters, o.op.Parameters} {
		for _, ref := range list {
			if ref != nil && ref.Value != nil {
				merged[ref.Value.In+" "+ref.Value.Name] = ref.Value
			}
		}
	}
	// Paths first, so that their arguments keep their names in a collision.
	order := slices.SortedFunc(maps.Keys(merged), func(a, b string) int {
		pathFirst := func(key string) string { return strings.Replace(key, "path ", "\x00", 1) }
		return strings.Compare(pathFirst(a), pathFirst(b))
	})
	for _, key := range order {
		p := merged[key]
		if err := o.parameter(p); err != nil {
			if p.Required || p.In == openapi3.ParameterInPath {
				return fmt.Errorf("its %s parameter %s is required, but %w", p.In, p.Name, err)
			}
			o.warnf("%s parameter %s is left out: it %v", p.In, p.Name, err)
		}
	}
	return nil
}

func (o *operation) parameter(p *openapi3.Parameter) error {
	schema, err := o.parameterSchema(p)
	if err != nil {
		return err
	}
	switch p.In {
	case openapi3.ParameterInPath:
		if isType(schema, "array") || isType(schema, "object") {
			return errors.New("has no text that could stand in a path")
		}
		o.pathArgs[p.Name] = o.argument(p.Name, p.In, schema, true)
	case openapi3.ParameterInQuery:
		o.http.Query[p.Name] = "{" + o.argument(p.Name, p.In, schema, p.Required) + "}"
	case openapi3.ParameterInHeader:
		if slices.Contains([]string{"accept", "content-type", "authorization"}, strings.ToLower(p.Name)) {
			o.warnf("header parameter %s is left out: it follows from the body and the credentials", p.Name)
			return nil
		}
		if problem := headerProblem(p.Name, "{x}", nil); problem != "" {
			o.warnf("header parameter %s is left out: %s", p.Name, strings.TrimSuffix(problem, "; remove it"))
			return nil
		}
		o.http.Headers[p.Name] = "{" + o.argument(p.Name, p.In, schema, p.Required) + "}"
	default:
		return fmt.Errorf("would travel in a %s", p.In)
	}
	return nil
}

// parameterSchema is the schema of a parameter as an argument. An array that does
// not travel as one parameter for each item becomes a text, which the model joins.
func (o *operation) parameterSchema(p *openapi3.Parameter) (map[string]any, error) {
	ref := p.Schema
	for _, media := range slices.Sorted(maps.Keys(p.Content)) {
		if kind, _, _ := mime.ParseMediaType(media); !isJSON(kind) {
			return nil, fmt.Errorf("is written as %s", media)
		}
		ref = mediaOf(p.Content, media).Schema
	}
	schema, err := o.schemas.convert(ref)
	if err != nil {
		return nil, err
	}
	described(schema, p.Description)
	if len(p.Content) > 0 {
		return schema, nil
	}
	how, err := p.SerializationMethod()
	if err != nil {
		return nil, fmt.Errorf("has a style that is not known: %w", err)
	}
	value := o.schemas.resolve(schema)
	switch {
	case isType(value, "object"):
		return nil, fmt.Errorf("is an object in style %s", how.Style)
	case isType(value, "array") && (p.In == openapi3.ParameterInHeader || p.In == openapi3.ParameterInQuery && !repeats(how)):
		separator := map[string]string{openapi3.SerializationSpaceDelimited: "a blank", openapi3.SerializationPipeDelimited: "|"}[how.Style]
		if separator == "" {
			separator = "a comma"
		}
		o.warnf("%s parameter %s is an array that travels as one text; the argument is that text", p.In, p.Name)
		text := map[string]any{"type": "string"}
		described(text, strings.TrimSpace(p.Description+"\nSeveral values are separated by "+separator+"."))
		return text, nil
	case p.AllowReserved:
		o.warnf("%s parameter %s allows reserved characters; they are escaped", p.In, p.Name)
	}
	return schema, nil
}

// repeats reports whether an array travels as loopd sends it.
func repeats(how *openapi3.SerializationMethod) bool {
	return how.Style == openapi3.SerializationForm && how.Explode
}

// described adds a description to a schema that has none.
func described(schema map[string]any, text string) {
	if _, has := schema["description"]; !has && text != "" {
		schema["description"] = text
	}
}

// isType reports whether a schema is of one type, or of it and null.
func isType(schema map[string]any, name string) bool {
	switch t := schema["type"].(type) {
	case string:
		return t == name
	case []any:
		return slices.Contains(t, any(name))
	}
	return false
}

// notInArgument is what some provider takes in no name of an argument.
var notInArgument = regexp.MustCompile(`[^a-zA-Z0-9_.-]+`)

// argument adds an argument under a name that is free and that providers take.
func (o *operation) argument(name, in string, schema map[string]any, required bool) string {
	arg := cut(strings.Trim(notInArgument.ReplaceAllString(name, "_"), "_"), 64)
	if arg == "" {
		arg = in
	}
	if _, taken := o.args[arg]; taken {
		arg = unique(cut(arg, 64-len(in)-1)+"_"+in, 64, o.args)
	}
	if arg != name {
		o.warnf("%s parameter %s is the argument %s", in, name, arg)
	}
	o.args[arg] = schema
	if required {
		o.required = append(o.required, arg)
	}
	return arg
}

// body turns the request body into arguments: its members, if it is a plain
// object, else the argument "body".
func (o *operation) body() error {
	if o.op.RequestBody == nil || o.op.RequestBody.Value == nil {
		return nil
	}
	request := o.op.RequestBody.Value
	if o.http.Body == "" {
		o.warnf("its body is left out: a %s request has none", o.method)
		return nil
	}
	media, kind := chooseMedia(request.Content)
	if media == "" {
		offered := strings.Join(slices.Sorted(maps.Keys(request.Content)), ", ")
		if request.Required {
			return fmt.Errorf("its body is written as %s; tools send JSON and forms", offered)
		}
		o.warnf("its body is left out: it is written as %s; tools send JSON and forms", offered)
		return nil
	}
	if n := len(request.Content); n > 1 {
		o.warnf("of %d ways to write its body, %s is used", n, media)
	}
	written := mediaOf(request.Content, media)
	schema, err := o.schemas.convert(written.Schema)
	if err != nil {
		return fmt.Errorf("its body %w", err)
	}
	o.http.Body = kind
	if kind == bodyJSON && media != "application/json" && !strings.Contains(media, "*") {
		o.http.Headers["Content-Type"] = media
	}
	if len(written.Encoding) > 0 {
		o.warnf("encodings of its body are not imported")
	}
	return o.bodyArguments(schema, request)
}

func (o *operation) bodyArguments(schema map[string]any, request *openapi3.RequestBody) error {
	object := o.schemas.resolve(schema)
	var template any
	switch {
	case isPlainObject(object) && (request.Required || object["required"] == nil):
		template = o.memberArguments(object)
	case o.http.Body == bodyForm && !isType(object, "object"):
		return errors.New("its form is no object")
	default:
		described(schema, request.Description)
		template = "{" + o.argument("body", "body", schema, request.Required) + "}"
	}
	if text, isText := template.(string); o.http.Body == bodyForm && isText {
		return fmt.Errorf("its form has members that depend on each other, so it cannot be taken apart (%s)", text)
	}
	var err error
	if o.http.BodyTemplate, err = json.Marshal(template); err != nil {
		return fmt.Errorf("write the template of its body: %w", err)
	}
	return nil
}

// memberArguments makes each member of a body an argument.
func (o *operation) memberArguments(object map[string]any) map[string]any {
	members, _ := object["properties"].(map[string]any)
	required, _ := object["required"].([]any)
	template := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		schema, ok := members[name].(map[string]any)
		if !ok { // true or false
			schema = map[string]any{}
		}
		if o.schemas.resolve(schema)["readOnly"] == true {
			o.warnf("member %s of the body is left out: it is read-only", name)
			continue
		}
		template[name] = "{" + o.argument(name, "body", schema, slices.Contains(required, any(name))) + "}"
	}
	return template
}

// isPlainObject reports whether a schema is an object of independent members, so
// that taking it apart loses nothing.
func isPlainObject(schema map[string]any) bool {
	if !isType(schema, "object") || schema["properties"] == nil {
		return false
	}
	for key := range schema {
		switch key {
		case "type", "properties", "required", "title", "description", "examples", "deprecated":
		case "additionalProperties":
			if schema[key] != false {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// chooseMedia picks how a body is written: JSON, what is based on it, or a form.
func chooseMedia(content openapi3.Content) (media, kind string) {
	best := 0
	for _, offered := range slices.Sorted(maps.Keys(content)) {
		rank, as := 0, bodyJSON
		switch bare, _, _ := mime.ParseMediaType(offered); {
		case bare == "application/json":
			rank = 4
		case bare == "*/*" || bare == "application/*":
			rank = 3
		case isJSON(bare):
			rank = 2
		case bare == "application/x-www-form-urlencoded":
			rank, as = 1, bodyForm
		}
		if rank > best {
			best, media, kind = rank, offered, as
		}
	}
	return media, kind
}

// mediaOf is what a document says about a media type, which may be nothing.
func mediaOf(content openapi3.Content, media string) *openapi3.MediaType {
	return cmp.Or(content[media], &openapi3.MediaType{})
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
}
