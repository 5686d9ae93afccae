package provider

import (
	"compress/gzip"
	"io"
)

// gunzip decompresses a body. The header is read with the first byte, when the
// watch is on, and what is decompressed counts against MaxResponseBytes.
type gunzip struct {
	source io.Reader
	reader *gzip.Reader
}

// Read implements io.Reader.
func (g *gunzip) Read(p []byte) (int, error) {
	if g.reader == nil {
		reader, err := gzip.NewReader(g.source)
		if err != nil {
			return 0, err
		}
		g.reader = reader
	}
	return g.reader.Read(p)
}
