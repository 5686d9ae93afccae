package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// pngHeader is how every PNG image begins.
const pngHeader = "\x89PNG\r\n\x1a\n"

// files writes files into a directory of their own and returns it.
func files(t *testing.T, contents map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range contents {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAttach(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{
		"box.png": pngHeader + "box", "renamed.jpg": pngHeader + "renamed", "terms": "%PDF-1.7 terms", "notes.csv": "a,b\nß,1\n",
		"run.yaml": "agent: support\ninput: What is this?\nattachments: [{uri: \"https://shop.example/scan\", media_type: image/webp}]\n",
	})
	term := setup(t)
	term.server.run = stoppedRun()
	term.wantCode(t, 0, term.loopd("run", "start", "-f", filepath.Join(dir, "run.yaml"),
		"--attach", filepath.Join(dir, "box.png"), "--attach", filepath.Join(dir, "renamed.jpg"), "--attach", filepath.Join(dir, "terms"),
		"--attach", filepath.Join(dir, "notes.csv"), "--attach", "https://shop.example/terms.PDF?v=2"))

	file := func(name, mediaType, data string) *loopdv1.Attachment {
		return &loopdv1.Attachment{Source: &loopdv1.Attachment_Data{Data: []byte(data)}, MediaType: mediaType, FileName: name}
	}
	link := func(uri, mediaType string) *loopdv1.Attachment {
		return &loopdv1.Attachment{Source: &loopdv1.Attachment_Uri{Uri: uri}, MediaType: mediaType}
	}
	term.wantRequest(t, &loopdv1.CreateRunRequest{Agent: "agents/support", Input: "What is this?", Attachments: []*loopdv1.Attachment{
		link("https://shop.example/scan", "image/webp"),
		file("box.png", "image/png", pngHeader+"box"),
		file("renamed.jpg", "image/png", pngHeader+"renamed"), // by its content, as the providers see it
		file("terms", "application/pdf", "%PDF-1.7 terms"),
		file("notes.csv", "text/plain", "a,b\nß,1\n"),
		link("https://shop.example/terms.PDF?v=2", "application/pdf"),
	}})
}

// What cannot be attached is refused before anything is sent, with the reason.
func TestAttachRefusals(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{
		"empty.txt": "", "latin1.txt": "stra\xdfe und Weg", "tool.bin": "\x00\x01\x02\x03", "song.mp3": "ID3\x03\x00",
		"saved.png": "<!DOCTYPE html><p>404", "large.png": pngHeader + strings.Repeat("x", maxAttached),
		"half1.png": pngHeader + strings.Repeat("x", maxAttached/2), "half2.png": pngHeader + strings.Repeat("x", maxAttached/2),
	})
	for sources, want := range map[string]string{
		"missing.png":                "no such file",
		".":                          "is a directory",
		"empty.txt":                  "the file is empty",
		"latin1.txt":                 "not UTF-8: convert it",
		"tool.bin":                   "its content is application/octet-stream: what can be attached is PNG,",
		"song.mp3":                   "its content is audio/mpeg",
		"saved.png":                  "its name says image/png, and its content is text/html",
		"large.png":                  "more than the 8388608 bytes",
		"half1.png half2.png":        "the attachments have 8388624 bytes together, and may have 8388608",
		"http://shop.example/a.png":  "not an https address",
		"https://shop.example/image": "its name does not end like that of a PNG,",
		"https://shop.example/%zz":   "invalid URL escape",
	} {
		t.Run(sources, func(t *testing.T) {
			t.Parallel()
			args := []string{"run", "start", "--agent", "support", "--input", "x"}
			for source := range strings.FieldsSeq(sources) {
				if !strings.Contains(source, "://") {
					source = filepath.Join(dir, source)
				}
				args = append(args, "--attach", source)
			}
			term := setup(t)
			term.wantCode(t, exitUsage, term.loopd(args...))
			if !strings.Contains(term.stderr.String(), want) || term.server.request != nil {
				t.Errorf("stderr %q, want %q; request %v", term.stderr.String(), want, term.server.request)
			}
		})
	}
}

func TestAttachedTypes(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for name, content := range map[string]string{
		"a.gif": "GIF89a...", "a.webp": "RIFF\x10\x00\x00\x00WEBPVP8 ", "a.jpeg": "\xff\xd8\xff\xe0", "a.html": "<html>", "a.svg": "<?xml version=\"1.0\"?><svg/>",
	} {
		mediaType, err := typeOf(name, []byte(content))
		if err != nil {
			t.Error(err)
		}
		got[name] = mediaType
	}
	want := map[string]string{"a.gif": "image/gif", "a.webp": "image/webp", "a.jpeg": "image/jpeg", "a.html": "text/plain", "a.svg": "text/plain"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("types (-want +got):\n%s", diff)
	}
}
