package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// maxAttached is how much data the attachments of a run may have together, as the API
// says.
const maxAttached = 8 << 20

// mediaTypes are what can be attached, by the extensions that files of it have.
var mediaTypes = map[string]string{
	".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
	".pdf": "application/pdf", ".txt": "text/plain", ".md": "text/plain",
}

// attachable names the types for people.
const attachable = "PNG, JPEG, GIF and WebP images, PDF, and text in UTF-8"

// attach adds the files and addresses to a request.
func attach(req *loopdv1.CreateRunRequest, sources []string) error {
	for _, source := range sources {
		a, err := attachment(source)
		if err != nil {
			return usagef("--attach %s: %w", source, err)
		}
		req.Attachments = append(req.Attachments, a)
	}
	size := 0
	for _, a := range req.GetAttachments() {
		size += len(a.GetData())
	}
	if size > maxAttached {
		return usagef("the attachments have %d bytes together, and may have %d: name some of them by an https address", size, maxAttached)
	}
	return nil
}

// attachment is a file with its content, or the address of one.
func attachment(source string) (*loopdv1.Attachment, error) {
	if strings.Contains(source, "://") {
		return linked(source)
	}
	data, err := readAttached(source)
	if err != nil {
		return nil, err
	}
	mediaType, err := typeOf(source, data)
	if err != nil {
		return nil, err
	}
	return &loopdv1.Attachment{
		Source: &loopdv1.Attachment_Data{Data: data}, MediaType: mediaType, FileName: filepath.Base(source),
	}, nil
}

// linked is an attachment that the provider reads. Its type can only be told by its
// name: loopd never reads it.
func linked(source string) (*loopdv1.Attachment, error) {
	u, err := url.Parse(source)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "https" {
		return nil, errors.New("it is not an https address: name one that is, or a file")
	}
	mediaType := mediaTypes[strings.ToLower(path.Ext(u.Path))]
	if mediaType == "" {
		return nil, errors.New("its name does not end like that of a " + attachable + ": download it and name the file, or give its type in the file of -f")
	}
	return &loopdv1.Attachment{Source: &loopdv1.Attachment_Uri{Uri: source}, MediaType: mediaType}, nil
}

// readAttached reads a file, as far as one that can be attached may go.
func readAttached(name string) ([]byte, error) {
	f, err := os.Open(name) //nolint:gosec // the user names the file to send
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAttached+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) == 0:
		return nil, errors.New("the file is empty")
	case len(data) > maxAttached:
		return nil, fmt.Errorf("the file has more than the %d bytes that attachments may have together: name it by an https address", maxAttached)
	}
	return data, nil
}

// typeOf is the type of a file by its content, which is what providers look at. A
// name that says something altogether different is a mistake: an error page that was
// saved as an image.
func typeOf(name string, data []byte) (string, error) {
	found, _, _ := strings.Cut(http.DetectContentType(data), ";")
	mediaType := found
	switch {
	case strings.HasPrefix(mediaType, "text/"):
		if !utf8.Valid(data) {
			return "", errors.New("its text is not UTF-8: convert it")
		}
		mediaType = "text/plain"
	case mediaType == "image/png", mediaType == "image/jpeg", mediaType == "image/gif", mediaType == "image/webp", mediaType == "application/pdf":
	default:
		return "", fmt.Errorf("its content is %s: what can be attached is %s", found, attachable)
	}
	named := mediaTypes[strings.ToLower(filepath.Ext(name))]
	if kind, _, _ := strings.Cut(mediaType, "/"); named != "" && !strings.HasPrefix(named, kind+"/") {
		return "", fmt.Errorf("its name says %s, and its content is %s: rename it, or name the right file", named, found)
	}
	return mediaType, nil
}
