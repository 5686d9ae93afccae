package main

import (
	"regexp"
	"strconv"
	"strings"
)

// lend gives the models of resellers the window of the vendor's own, where the
// reseller's name for one leads to it, what it reads, and whether it can be kept to
// a schema. What a model can write at once is up to the reseller, so it is not lent.
//
// A reseller's row that has one price for all sizes may only lack the tiers that
// the vendor has. So it is lent no more than the vendor sells at its base price.
func lend(book []chosen) {
	for i := range book {
		vendorOf := vendors(book[i].name)
		for j := range book[i].models {
			m := &book[i].models[j]
			name, id := vendorOf(m.ID)
			if name == "" || m.Window != 0 {
				continue
			}
			if vendor := find(book, name, id); vendor != nil && vendor.Window != 0 {
				m.Window, m.Reads = vendor.Window, vendor.Reads
				m.Structured = vendor.Structured && book[i].name != "bedrock" // whose endpoints that loopd speaks to refuse schemas
				if starts := tierStart.FindSubmatch(vendor.Prices); starts != nil && !tierStart.Match(m.Prices) {
					first, _ := strconv.ParseInt(string(starts[1]), 10, 64) // the pattern admits digits only
					m.Window = min(m.Window, first)
				}
			}
		}
	}
}

// tierStart finds the size at which a price first rises.
var tierStart = regexp.MustCompile(`"start": ?(\d+)`)

// vendors tells whose model a reseller's id is and what its vendor calls it.
func vendors(reseller string) func(id string) (name, vendorID string) {
	switch reseller {
	case "azure":
		return func(id string) (string, string) { return "openai", dated.ReplaceAllString(id, "") }
	case "gemini": // Vertex AI
		return func(id string) (string, string) { return "anthropic", claude(id) }
	case "together":
		return func(id string) (string, string) { return "huggingface-together", strings.TrimSuffix(id, "-Turbo") }
	case "bedrock":
		return bedrockVendor
	case "openrouter":
		return openrouterVendor
	}
	return func(string) (string, string) { return "", "" }
}

// bedrockClaude finds the model in ids such as
// regional.anthropic.claude-opus-4-1-20250805-v1:0.
var bedrockClaude = regexp.MustCompile(`anthropic\.(claude-[a-z0-9-]+?)(-20\d{6})?(-v\d:0)?$`)

// dated finds the date of a version.
var dated = regexp.MustCompile(`-20\d\d-\d\d-\d\d$`)

func bedrockVendor(id string) (name, vendorID string) {
	found := bedrockClaude.FindStringSubmatch(id)
	if found == nil {
		return "", ""
	}
	return "anthropic", claude(found[1])
}

// claude is the id of the row for a model that is written in another way.
func claude(id string) string {
	id = strings.ReplaceAll(id, ".", "-")
	switch id {
	case "claude-3-5-haiku", "claude-3-7-sonnet", "claude-3-opus":
		return id + "-latest"
	case "claude-opus-4", "claude-sonnet-4":
		return id + "-0"
	}
	return id
}

func openrouterVendor(id string) (name, vendorID string) {
	vendor, rest, _ := strings.Cut(id, "/")
	switch vendor {
	case "anthropic":
		return "anthropic", claude(rest)
	case "google":
		return "gemini", strings.TrimSuffix(rest, "-001")
	case "mistralai":
		return "mistral", rest
	case "openai", "deepseek":
		return vendor, rest
	case "moonshotai":
		return "moonshot", rest
	case "x-ai":
		return "xai", rest
	case "z-ai":
		return "zai", rest
	}
	return "", ""
}
