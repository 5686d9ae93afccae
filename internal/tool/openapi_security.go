package tool

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// security puts references to secrets where the operation wants credentials: of
// several ways to get in, the first that asks for any.
func (o *operation) security() {
	requirements := o.doc.Security
	if o.op.Security != nil {
		requirements = *o.op.Security
	}
	var wanted openapi3.SecurityRequirement
	for _, requirement := range requirements {
		if wanted == nil && len(requirement) > 0 {
			wanted = requirement
		}
	}
	if len(requirements) > 1 && wanted != nil {
		o.warnf("of %d ways to authenticate, the first is used", len(requirements))
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		o.credential(name)
	}
}

// notInSecret is what stands in no name of an environment variable, which is
// where secrets may come from.
var notInSecret = regexp.MustCompile(`[^a-zA-Z0-9_]+`)

func (o *operation) credential(name string) {
	var scheme *openapi3.SecurityScheme
	if c := o.doc.Components; c != nil && c.SecuritySchemes[name] != nil {
		scheme = c.SecuritySchemes[name].Value
	}
	if scheme == nil {
		o.notef("security scheme %s is not defined; calls go out without it", name)
		return
	}
	secret := cmp.Or(strings.ToUpper(strings.Trim(notInSecret.ReplaceAllString(name, "_"), "_")), "API_KEY")
	ref := "${secret:" + secret + "}"
	switch kind := strings.ToLower(scheme.Type + " " + scheme.Scheme); {
	case kind == "http basic":
		o.http.Headers["Authorization"] = "Basic " + ref
		o.notef("security scheme %s: set the secret %s to the base64 of user:password", name, secret)
	case kind == "http bearer":
		o.http.Headers["Authorization"] = "Bearer " + ref
		o.notef("security scheme %s: set the secret %s to the token; it is sent in the header Authorization", name, secret)
	case scheme.Type == "oauth2" || scheme.Type == "openIdConnect":
		o.http.Headers["Authorization"] = "Bearer " + ref
		o.notef("security scheme %s: loopd fetches no tokens; set the secret %s to an access token and renew it there", name, secret)
	case scheme.Type == "apiKey":
		o.apiKey(name, scheme, secret, ref)
	default:
		o.notef("security scheme %s: %s is not supported; calls go out without it", name, strings.TrimSpace(scheme.Type+" "+scheme.Scheme))
	}
}

func (o *operation) apiKey(name string, scheme *openapi3.SecurityScheme, secret, ref string) {
	switch scheme.In {
	case openapi3.ParameterInQuery:
		o.http.Query[scheme.Name] = ref
	case openapi3.ParameterInCookie:
		o.http.Headers["Cookie"] = scheme.Name + "=" + ref
	default:
		if problem := headerProblem(scheme.Name, ref, nil); problem != "" {
			o.notef("security scheme %s: header %s: %s; calls go out without it", name, scheme.Name, problem)
			return
		}
		o.http.Headers[scheme.Name] = ref
	}
	o.notef("security scheme %s: set the secret %s to the key; it is sent in the %s %s", name, secret, scheme.In, scheme.Name)
}
