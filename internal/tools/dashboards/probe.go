package main
import (
 _ "github.com/grafana/grafana-foundation-sdk/go/dashboard"
 _ "github.com/grafana/grafana-foundation-sdk/go/timeseries"
 _ "github.com/grafana/grafana-foundation-sdk/go/prometheus"
 _ "github.com/prometheus/prometheus/promql/parser"
 _ "gonum.org/v1/plot"
 _ "gonum.org/v1/plot/vg/vgimg"
)
func main(){}
