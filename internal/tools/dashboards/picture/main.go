// Command picture draws what the panels of the dashboards returned, one file for each
// dashboard, for who has no Grafana at hand:
//
//	go run -C internal/tools/dashboards ./picture DATA.json ../../../deploy/grafana/pictures
//
// DATA.json is what obscheck wrote with --data.
package main

import (
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/color/palette"
	stddraw "image/draw"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	plotpalette "gonum.org/v1/plot/palette"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// shown is a panel with its data, as obscheck writes it.
type shown struct {
	Board, Title, Type, Unit string
	Series                   []series
}

type series struct {
	Labels map[string]string
	Points [][2]any // Unix seconds, and the value as text
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: picture DATA.json DIRECTORY")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(data, dir string) error {
	text, err := os.ReadFile(data)
	if err != nil {
		return fmt.Errorf("read the data: %w", err)
	}
	var all []shown
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("read %s: %w", data, err)
	}
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(p shown) bool { return p.Board != all[0].Board })
		if n < 0 {
			n = len(all)
		}
		if err := paint(all[:n], filepath.Join(dir, all[0].Board+".png")); err != nil {
			return fmt.Errorf("draw %s: %w", all[0].Board, err)
		}
		all = all[n:]
	}
	return nil
}

const (
	columns = 3
	width   = 330 // of a panel, in pixels; at 72 dots per inch a point is a pixel
	high    = 170
)

// paint draws the panels of a dashboard side by side.
func paint(panels []shown, path string) error {
	lines := (len(panels) + columns - 1) / columns
	canvas := vgimg.NewWith(vgimg.UseWH(columns*width, font.Length(lines*high)), vgimg.UseDPI(72))
	all := draw.New(canvas)
	for i, p := range panels {
		drawn, err := p.plot()
		if err != nil {
			return fmt.Errorf("%q: %w", p.Title, err)
		}
		x, y := font.Length(i%columns*width), font.Length((lines-1-i/columns)*high)
		drawn.Draw(draw.Crop(all, x+4, x+width-4-columns*width, y+4, y+high-4-font.Length(lines*high)))
	}
	return write(canvas.Image(), path)
}

// write saves few colours, so that the file is small.
func write(from image.Image, path string) error {
	small := image.NewPaletted(from.Bounds(), palette.WebSafe)
	stddraw.Draw(small, small.Bounds(), from, image.Point{}, stddraw.Src)
	out, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(out, small); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return out.Close()
}

// plot draws one panel.
func (p shown) plot() (*plot.Plot, error) {
	drawn := plot.New()
	drawn.Title.Text = p.Title
	if p.Unit != "" {
		drawn.Title.Text += " [" + p.Unit + "]"
	}
	drawn.Title.TextStyle.Font.Size = 9
	drawn.X.Tick.Label.Font.Size, drawn.Y.Tick.Label.Font.Size, drawn.Legend.TextStyle.Font.Size = 6, 6, 6
	drawn.Legend.Top, drawn.Legend.ThumbnailWidth = true, 8
	switch p.Type {
	case "stat", "table":
		return drawn, p.numbers(drawn)
	case "heatmap":
		return drawn, p.heat(drawn)
	}
	return drawn, p.lines(drawn)
}

// most is how many series of a panel are drawn and named.
const most = 8

func (p shown) lines(drawn *plot.Plot) error {
	first := p.start()
	drawn.Y.Min = 0
	for i, s := range p.Series {
		line, err := plotter.NewLine(s.points(first))
		if err != nil {
			continue // nothing but gaps
		}
		line.Color, line.Width = plotutil.Color(i), 1
		drawn.Add(line)
		if i < most {
			drawn.Legend.Add(s.name(), line)
		}
	}
	drawn.X.Max *= 1.5 // room for the names
	if drawn.Y.Max <= drawn.Y.Min {
		drawn.Y.Max = drawn.Y.Min + 1
	}
	return nil
}

// numbers writes the last value of each series.
func (p shown) numbers(drawn *plot.Plot) error {
	drawn.HideAxes()
	var labels plotter.XYLabels
	for i, s := range p.Series {
		if i == most || len(s.Points) == 0 {
			break
		}
		points := s.points(0)
		labels.XYs = append(labels.XYs, plotter.XY{X: 0, Y: -float64(i)})
		labels.Labels = append(labels.Labels, fmt.Sprintf("%s  %.4g", s.name(), points[len(points)-1].Y))
	}
	text, err := plotter.NewLabels(labels)
	if err != nil {
		return fmt.Errorf("write numbers: %w", err)
	}
	for i := range text.TextStyle {
		text.TextStyle[i].Font.Size = 8
	}
	drawn.Add(text)
	drawn.X.Min, drawn.X.Max, drawn.Y.Min, drawn.Y.Max = -.05, 1, -most, .8
	return nil
}

func (p shown) heat(drawn *plot.Plot) error {
	g := p.grid()
	if g.peak == 0 {
		return nil
	}
	drawn.Add(plotter.NewHeatMap(g, pale{plotpalette.Heat(12, 1)}))
	var ticks plot.ConstantTicks
	for i, bound := range g.bounds {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: strconv.FormatFloat(bound, 'g', 4, 64)})
	}
	drawn.Y.Tick.Marker = ticks
	drawn.BackgroundColor = color.White
	return nil
}

// pale is a palette the other way about, so that nothing is white.
type pale struct{ plotpalette.Palette }

// Colors begins with the last one.
func (p pale) Colors() []color.Color {
	colors := slices.Clone(p.Palette.Colors())
	slices.Reverse(colors)
	return colors
}

// grid is a histogram over time: how much fell into each bucket.
type grid struct {
	bounds []float64
	times  []float64
	cells  map[[2]int]float64
	peak   float64
}

func (g grid) Dims() (c, r int)   { return len(g.times), len(g.bounds) }
func (g grid) X(c int) float64    { return g.times[c] }
func (g grid) Y(r int) float64    { return float64(r) }
func (g grid) Z(c, r int) float64 { return g.cells[[2]int{c, r}] }

// grid turns cumulative buckets into separate ones, of five seconds each.
func (p shown) grid() grid {
	first, sums := p.start(), map[float64]map[int]float64{}
	g := grid{cells: map[[2]int]float64{}}
	slots := 0
	for _, s := range p.Series {
		bound, err := strconv.ParseFloat(strings.Replace(s.name(), "+Inf", "Inf", 1), 64)
		if err != nil {
			continue
		}
		g.bounds = append(g.bounds, bound)
		sums[bound] = map[int]float64{}
		for _, at := range s.points(first) {
			slot := int(at.X / 5)
			sums[bound][slot] += at.Y
			slots = max(slots, slot+1)
		}
	}
	slices.Sort(g.bounds)
	for c := range slots {
		g.times = append(g.times, float64(c*5))
		below := 0.0
		for r, bound := range g.bounds {
			now := sums[bound][c]
			g.cells[[2]int{c, r}] = max(0, now-below)
			g.peak = max(g.peak, now-below)
			below = now
		}
	}
	if len(g.times) < 2 || len(g.bounds) < 2 {
		g.peak = 0
	}
	return g
}

// start is the first time of all series, so that pictures begin with 0 s.
func (p shown) start() float64 {
	first := math.Inf(1)
	for _, s := range p.Series {
		for _, at := range s.points(0) {
			first = min(first, at.X)
		}
	}
	return first
}

// points leaves out what is no number.
func (s series) points(first float64) plotter.XYs {
	var all plotter.XYs
	for _, pair := range s.Points {
		at, _ := pair[0].(float64)
		text, _ := pair[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
			all = append(all, plotter.XY{X: at - first, Y: v})
		}
	}
	return all
}

func (s series) name() string { return s.Labels[""] }
