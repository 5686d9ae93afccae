package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/oauth2/google"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/traffic"
	"github.com/loopd/loopd/internal/pricing"
	"github.com/loopd/loopd/internal/provider"
	"github.com/loopd/loopd/internal/provider/anthropic"
	"github.com/loopd/loopd/internal/provider/gemini"
	"github.com/loopd/loopd/internal/provider/openai"
	"github.com/loopd/loopd/internal/provider/responses"
	"github.com/loopd/loopd/internal/provider/scripted"
)

// providerConfig is one provider as the operator writes it: in the file that
// --providers names, under its name.
type providerConfig struct {
	Kind       string            `yaml:"kind"`         // one of kinds
	Profile    string            `yaml:"profile"`      // of kind openai: which server it is
	Overrides  map[string]any    `yaml:"overrides"`    // members of the profile to replace
	BaseURL    string            `yaml:"base_url"`     // default: the kind's or the profile's own
	APIKeyEnv  string            `yaml:"api_key_env"`  // environment variable with the key
	APIKeyFile string            `yaml:"api_key_file"` // file with the key
	KeyHeader  string            `yaml:"key_header"`   // of kind openai_responses: "api-key" for Azure
	Auth       string            `yaml:"auth"`         // "google": Application Default Credentials instead of a key, for Vertex AI
	Headers    map[string]string `yaml:"headers"`
	Prices     string            `yaml:"prices"`          // whose prices count, by the price book's name; default: the provider's name
	SharesKey  string            `yaml:"shares_key_with"` // another provider with the same key: they have one rate limit
	Limits     struct {
		RequestsPerMinute int64 `yaml:"requests_per_minute"`
		TokensPerMinute   int64 `yaml:"tokens_per_minute"`
		Concurrent        int   `yaml:"concurrent"`
	} `yaml:"limits"`
	FirstByteTimeout time.Duration `yaml:"first_byte_timeout"`
	IdleTimeout      time.Duration `yaml:"idle_timeout"`
	MaxResponseBytes int64         `yaml:"max_response_bytes"`
}

// The wire formats.
const (
	kindAnthropic = "anthropic"
	kindOpenAI    = "openai"
	kindResponses = "openai_responses"
	kindGemini    = "gemini"
)

// providerName is what a model reference can name.
var providerName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// openedProviders are the providers that this process can reach.
type openedProviders struct {
	models map[string]engine.Model
	limits map[string]traffic.Limits
	prices map[string]string // by provider: whose prices count, where not its own
	shares map[string]string // by provider: whose key it uses, where not its own
}

// openProviders makes the providers that are configured: those with a key in the
// environment, those of the file, and the scripted one. The file's win.
func openProviders(c config) (openedProviders, error) {
	configs := c.wellKnownProviders()
	fromFile, err := readProviders(c.providers)
	if err != nil {
		return openedProviders{}, err
	}
	maps.Copy(configs, fromFile)
	opened := openedProviders{models: map[string]engine.Model{}, limits: map[string]traffic.Limits{}, prices: map[string]string{}, shares: map[string]string{}}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		if err := opened.open(name, configs[name], c.getenv); err != nil {
			errs = append(errs, fmt.Errorf("providers.%s.%w", name, err))
		}
	}
	for name, p := range configs {
		if _, known := configs[p.SharesKey]; p.SharesKey != "" && (!known || p.SharesKey == name) {
			errs = append(errs, fmt.Errorf("providers.%s.shares_key_with: %q is no other provider of this process", name, p.SharesKey))
		}
	}
	script, err := openScript(c)
	if script != nil {
		opened.models["scripted"] = script
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return openedProviders{}, &exitError{code: exitUsage, err: err}
	}
	return opened, nil
}

// wellKnownProviders are those whose key is in the environment under its usual
// name with LOOPD_ before it, so that loopd needs no file to begin with.
func (c *config) wellKnownProviders() map[string]providerConfig {
	found := map[string]providerConfig{}
	add := func(name, owner string, p providerConfig) {
		p.APIKeyEnv = "LOOPD_" + strings.ToUpper(owner) + "_API_KEY"
		if c.getenv(p.APIKeyEnv) != "" || c.getenv(p.APIKeyEnv+"_FILE") != "" {
			found[name] = p
		}
	}
	add("anthropic", "anthropic", providerConfig{Kind: kindAnthropic, BaseURL: c.anthropicURL})
	add("openai", "openai", providerConfig{Kind: kindOpenAI, BaseURL: c.openaiURL})
	add("openai-responses", "openai", providerConfig{Kind: kindResponses, BaseURL: c.openaiURL, Prices: "openai", SharesKey: "openai"})
	add("gemini", "gemini", providerConfig{Kind: kindGemini})
	for _, name := range []string{"groq", "deepseek", "mistral", "openrouter", "xai"} {
		add(name, name, providerConfig{Kind: kindOpenAI, Profile: name})
	}
	return found
}

// readProviders reads the operator's file. A member that is not known is an
// error: it would be a limit or a header that silently does not count.
func readProviders(path string) (map[string]providerConfig, error) {
	if path == "" {
		return map[string]providerConfig{}, nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, usagef("read --providers: %w", err)
	}
	var file struct {
		Providers map[string]providerConfig `yaml:"providers"`
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&file); err != nil {
		return nil, usagef("%s: %w", path, err)
	}
	return file.Providers, nil
}

// open checks one provider and makes it. Its errors begin with the member.
func (o *openedProviders) open(name string, p providerConfig, getenv func(string) string) error {
	if !providerName.MatchString(name) {
		return errors.New("name: use a-z, 0-9 and -, at most 32 characters: it is the part of a model reference before the slash")
	}
	key, err := p.key(getenv)
	if err != nil {
		return err
	}
	if p.Limits.RequestsPerMinute < 0 || p.Limits.TokensPerMinute < 0 || p.Limits.Concurrent < 0 {
		return errors.New("limits: use 0 or more; 0 is not limited by loopd")
	}
	if o.models[name], err = p.client(key); err != nil {
		return err
	}
	o.limits[name] = traffic.Limits{
		RequestsPerMinute: p.Limits.RequestsPerMinute, TokensPerMinute: p.Limits.TokensPerMinute, Concurrent: p.Limits.Concurrent,
	}
	if p.Prices != "" {
		o.prices[name] = p.Prices
	}
	if p.SharesKey != "" {
		o.shares[name] = p.SharesKey
	}
	return nil
}

// key reads the credential.
func (p providerConfig) key(getenv func(string) string) (provider.Secret, error) {
	switch {
	case p.APIKeyEnv != "" && p.APIKeyFile != "":
		return "", errors.New("api_key_file: api_key_env is set too; keep one")
	case p.APIKeyFile != "":
		key, err := readSecret(func(name string) string { return map[string]string{"API_KEY_FILE": p.APIKeyFile}[name] }, "API_KEY")
		if err != nil {
			return "", fmt.Errorf("api_key_file: %w", err)
		}
		return provider.Secret(key), nil
	case p.APIKeyEnv != "":
		key, err := readSecret(getenv, p.APIKeyEnv)
		if err == nil && key == "" {
			err = fmt.Errorf("%s is not set", p.APIKeyEnv)
		}
		if err != nil {
			return "", fmt.Errorf("api_key_env: %w", err)
		}
		return provider.Secret(key), nil
	}
	return "", nil
}

// client makes the adapter of the kind.
func (p providerConfig) client(key provider.Secret) (engine.Model, error) {
	token, err := p.token()
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	for name, value := range p.Headers {
		header.Set(name, value)
	}
	switch p.Kind {
	case kindAnthropic:
		config := anthropic.Config{
			APIKey: key, BaseURL: p.BaseURL, Header: header, Token: token, Vertex: token != nil,
			FirstByteTimeout: p.FirstByteTimeout, IdleTimeout: p.IdleTimeout, MaxResponseBytes: p.MaxResponseBytes,
		}
		return anthropic.New(config), config.Validate()
	case kindGemini:
		config := gemini.Config{
			APIKey: key, BaseURL: p.BaseURL, Header: header, Token: token,
			FirstByteTimeout: p.FirstByteTimeout, IdleTimeout: p.IdleTimeout, MaxResponseBytes: p.MaxResponseBytes,
		}
		return gemini.New(config), config.Validate()
	case kindResponses:
		config := responses.Config{
			APIKey: key, KeyHeader: p.KeyHeader, BaseURL: p.BaseURL, Header: header,
			FirstByteTimeout: p.FirstByteTimeout, IdleTimeout: p.IdleTimeout, MaxResponseBytes: p.MaxResponseBytes,
		}
		return responses.New(config), config.Validate()
	case kindOpenAI:
		profile, err := p.profile()
		if err != nil {
			return nil, err
		}
		config := openai.Config{
			APIKey: key, BaseURL: p.BaseURL, Header: header, Profile: profile,
			FirstByteTimeout: p.FirstByteTimeout, IdleTimeout: p.IdleTimeout, MaxResponseBytes: p.MaxResponseBytes,
		}
		return openai.New(config), config.Validate()
	}
	return nil, fmt.Errorf("kind: %q is none of %s, %s, %s, %s", p.Kind, kindAnthropic, kindOpenAI, kindResponses, kindGemini)
}

// token is where access tokens come from, nil for a provider with a key.
func (p providerConfig) token() (func(context.Context) (string, error), error) {
	switch p.Auth {
	case "":
		return nil, nil //nolint:nilnil // there is none
	case "google":
	default:
		return nil, fmt.Errorf("auth: %q is not known; use google, or leave it out and give a key", p.Auth)
	}
	if p.Kind != kindAnthropic && p.Kind != kindGemini {
		return nil, fmt.Errorf("auth: google works with kinds %s and %s", kindAnthropic, kindGemini)
	}
	source, err := google.DefaultTokenSource(context.Background(), "https://www.googleapis.com/auth/cloud-platform")
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	return func(context.Context) (string, error) {
		t, err := source.Token()
		if err != nil {
			return "", fmt.Errorf("google credentials: %w", err)
		}
		return t.AccessToken, nil
	}, nil
}

// profile is the named one with the operator's members in it.
func (p providerConfig) profile() (openai.Profile, error) {
	var profile openai.Profile
	if p.Profile != "" {
		var err error
		if profile, err = openai.ProfileNamed(p.Profile); err != nil {
			return profile, fmt.Errorf("profile: %w", err)
		}
	}
	if len(p.Overrides) == 0 {
		return profile, nil
	}
	text, err := yaml.Marshal(p.Overrides)
	if err != nil {
		return profile, fmt.Errorf("overrides: %w", err)
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&profile); err != nil {
		return profile, fmt.Errorf("overrides: %w", err)
	}
	return profile, nil
}

// openScript makes the scripted provider, nil if there is no script.
func openScript(c config) (engine.Model, error) {
	text := c.scripted
	if c.script != "" {
		b, err := os.ReadFile(c.script)
		if err != nil {
			return nil, fmt.Errorf("read --script: %w", err)
		}
		text = b
	}
	if text == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	script, err := scripted.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("scripted models: %w", err)
	}
	return scripted.New(script), nil
}

// openPrices is the bundled price book with the operator's rows over it, and the
// providers that are charged like another one.
func openPrices(c config, aliases map[string]string) (*pricing.Book, error) {
	book, err := pricing.Bundled()
	if err != nil {
		return nil, err
	}
	if c.prices != "" {
		f, err := os.Open(c.prices)
		if err != nil {
			return nil, fmt.Errorf("read --prices: %w", err)
		}
		defer f.Close()
		override, err := pricing.Load(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.prices, err)
		}
		book = book.With(override)
	}
	for _, name := range slices.Sorted(maps.Keys(aliases)) {
		book = book.As(name, aliases[name])
	}
	return book, nil
}
