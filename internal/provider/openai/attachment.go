package openai

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

type textPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type thinkingPart struct {
	Type     string     `json:"type"`
	Thinking []textPart `json:"thinking"`
}

type imagePart struct {
	Type     string   `json:"type"`
	ImageURL imageURL `json:"image_url"`
}

type imageURL struct {
	URL string `json:"url"`
}

type filePart struct {
	Type string `json:"type"`
	File file   `json:"file"`
}

type file struct {
	Name string `json:"filename"`
	Data string `json:"file_data"` // an address, data: or https:
}

type documentPart struct {
	Type        string `json:"type"`
	DocumentURL string `json:"document_url"`
	Name        string `json:"document_name,omitempty"`
}

// attachment writes an image or a document. What the server does not take is the
// run's mistake, and is told before anything is sent.
func (p Profile) attachment(part loop.Part) (any, error) {
	m := *part.Media
	if part.Kind == loop.PartImage {
		if err := p.takes("images", p.Images, m); err != nil {
			return nil, err
		}
		return imagePart{Type: "image_url", ImageURL: imageURL{URL: address(m)}}, nil
	}
	if m.URL == "" && strings.HasPrefix(m.Type, "text/") {
		return textPart{Type: "text", Text: strings.TrimPrefix(m.Name+"\n"+strings.ToValidUTF8(string(m.Data), "\uFFFD"), "\n")}, nil
	}
	if err := p.takes("documents", p.Documents, m); err != nil {
		return nil, err
	}
	if m.Type != pdf {
		return nil, refuse("document %q is %s: this server reads %s only; send the text of others as text/plain", m.Name, m.Type, pdf)
	}
	if p.Documents == MediaDocumentURL {
		return documentPart{Type: "document_url", DocumentURL: address(m), Name: m.Name}, nil
	}
	return filePart{Type: "file", File: file{Name: first(m.Name, "document.pdf"), Data: address(m)}}, nil
}

const pdf = "application/pdf"

// takes reports an attachment that the server does not take in this form.
func (p Profile) takes(what, form string, m loop.Media) error {
	switch {
	case form == MediaNone:
		return refuse("attachment %q: profile %s takes no %s; leave it out, or change the member %s of the profile", m.Name, p.Name, what, what)
	case form == MediaData && m.URL != "":
		return refuse("attachment %q: profile %s takes no addresses of %s; send data instead of url", m.Name, p.Name, what)
	}
	return nil
}

func refuse(format string, args ...any) error {
	return &loop.ModelError{Class: loop.ErrorRequest, Code: "unsupported_attachment", Message: fmt.Sprintf(format, args...)}
}

// address is where the server finds the bytes: somewhere else, or right here.
func address(m loop.Media) string {
	if m.URL != "" {
		return m.URL
	}
	return "data:" + m.Type + ";base64," + base64.StdEncoding.EncodeToString(m.Data)
}
