package main

import (
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	grafanastat "github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// build makes Grafana's form of a board.
func build(b board) (dashboard.Dashboard, error) {
	made := dashboard.NewDashboardBuilder(b.title).Uid("loopd-"+b.id).Description(b.about).Tags([]string{"loopd"}).
		Time("now-6h", "now").Refresh("30s").Timezone("browser").Tooltip(dashboard.DashboardCursorSyncCrosshair).Readonly().
		Link(dashboard.NewDashboardLinkBuilder("loopd").Type(dashboard.DashboardLinkTypeDashboards).Tags([]string{"loopd"}).IncludeVars(true).KeepTime(true))
	for _, v := range variables() {
		made.WithVariable(v)
	}
	for _, a := range annotations() {
		made.Annotation(a)
	}
	var x, y uint32
	for i, p := range b.panels {
		if p.width == 0 {
			p.width = 8
		}
		if x+p.width > 24 {
			x, y = 0, y+height
		}
		made.WithPanel(p.build(uint32(i+1), dashboard.GridPos{X: x, Y: y, W: p.width, H: height}))
		x += p.width
	}
	return made.Build()
}

const height = 8

func source() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}
}

// variables are those of every board. "All" is any value and none at all, so that a
// Prometheus without namespaces shows everything.
func variables() []cog.Builder[dashboard.VariableModel] {
	all := []cog.Builder[dashboard.VariableModel]{dashboard.NewDatasourceVariableBuilder("datasource").Label("Prometheus").Type("prometheus")}
	for _, v := range []struct{ name, from string }{
		{"namespace", "loopd_build_info"}, {"agent", "loopd_runs_started_total"}, {"model", "loopd_llm_requests_total"},
		{"tenant", "loopd_tenant_runs_finished_total"}, {"tool", "loopd_tool_calls_total"},
	} {
		ask := fmt.Sprintf("label_values(%s, %s)", v.from, v.name)
		all = append(all, dashboard.NewQueryVariableBuilder(v.name).Datasource(source()).Query(dashboard.StringOrMap{String: &ask}).Definition(ask).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc).Multi(true).IncludeAll(true).AllValue(".*").
			Current(dashboard.VariableOption{
				Text: dashboard.StringOrArrayOfString{ArrayOfString: []string{"All"}}, Value: dashboard.StringOrArrayOfString{ArrayOfString: []string{"$__all"}},
			}))
	}
	return append(all, dashboard.NewTextBoxVariableBuilder("loopd").Label("REST of loopd").DefaultValue(dashboard.StringOrMap{String: cog.ToPtr("http://localhost:8080")}))
}

// annotations mark what on-call people ask about first: did anything change.
func annotations() []cog.Builder[dashboard.AnnotationQuery] {
	mark := func(name, color, expr, text string) cog.Builder[dashboard.AnnotationQuery] {
		return dashboard.NewAnnotationQueryBuilder().Name(name).Datasource(source()).Enable(true).IconColor(color).Expr(expr).
			TitleFormat(name).TextFormat(text).Step("60s")
	}
	return []cog.Builder[dashboard.AnnotationQuery]{
		mark("Deployed", "blue", `count by (version) (`+in("build_info", "")+`) unless count by (version) (`+in("build_info", "")+` offset 5m)`, "version {{version}}"),
		mark("Configured", "purple", `count by (hash) (`+in("config_info", "")+`) unless count by (hash) (`+in("config_info", "")+` offset 5m)`, "configuration {{hash}}"),
		mark("Draining", "orange", in("draining", "")+" == 1", "{{instance}} hands its runs over"),
	}
}

// links list the runs behind a panel, in the states that it is about.
func (p panel) links() []cog.Builder[dashboard.DashboardLink] {
	if p.runs == "" {
		return nil
	}
	return []cog.Builder[dashboard.DashboardLink]{
		dashboard.NewDashboardLinkBuilder("Open these runs").Type(dashboard.DashboardLinkTypeLink).TargetBlank(true).
			Url("${loopd}/v1/runs?states=" + p.runs),
	}
}

// dataLinks list the runs of the agent that a series is about.
func (p panel) dataLinks() []cog.Builder[dashboard.DashboardLink] {
	if !p.by("{{agent}}") {
		return nil
	}
	url := "${loopd}/v1/runs?agent=agents/${__field.labels.agent}"
	if p.runs != "" {
		url += "&states=" + p.runs
	}
	return []cog.Builder[dashboard.DashboardLink]{
		dashboard.NewDashboardLinkBuilder("Open the runs of ${__field.labels.agent}").Type(dashboard.DashboardLinkTypeLink).TargetBlank(true).Url(url),
	}
}

func (p panel) by(legend string) bool {
	for _, q := range p.queries {
		if q.legend == legend {
			return true
		}
	}
	return false
}

func (p panel) targets() []cog.Builder[variants.Dataquery] {
	var all []cog.Builder[variants.Dataquery]
	for i, q := range p.queries {
		t := prometheus.NewDataqueryBuilder().Datasource(source()).RefId(string(rune('A' + i))).Expr(q.expr).LegendFormat(q.legend).Exemplar(q.exemplars)
		switch p.kind {
		case heat:
			t.Format(prometheus.PromQueryFormatHeatmap).Range()
		case rows:
			t.Format(prometheus.PromQueryFormatTable).Instant()
		case stat:
			t.Instant()
		default:
			t.Range()
		}
		all = append(all, t)
	}
	return all
}

// build makes Grafana's form of a panel.
func (p panel) build(id uint32, at dashboard.GridPos) cog.Builder[dashboard.Panel] {
	legend := common.NewVizLegendOptionsBuilder().DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true)
	switch p.kind {
	case heat:
		b := heatmap.NewPanelBuilder().Id(id).Title(p.title).Description(p.about).Datasource(source()).GridPos(at).Links(p.links()).Calculate(false)
		b.YAxis(heatmap.NewYAxisConfigBuilder().Unit(p.unit)).ShowLegend()
		for _, t := range p.targets() {
			b.WithTarget(t)
		}
		return b
	case stat:
		b := grafanastat.NewPanelBuilder().Id(id).Title(p.title).Description(p.about).Datasource(source()).GridPos(at).Links(p.links()).Unit(p.unit).
			ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).NoValue("none")
		for _, t := range p.targets() {
			b.WithTarget(t)
		}
		return b
	case rows:
		b := table.NewPanelBuilder().Id(id).Title(p.title).Description(p.about).Datasource(source()).GridPos(at).Links(p.links()).Unit(p.unit)
		for _, t := range p.targets() {
			b.WithTarget(t)
		}
		return b
	}
	b := timeseries.NewPanelBuilder().Id(id).Title(p.title).Description(p.about).Datasource(source()).GridPos(at).Links(p.links()).DataLinks(p.dataLinks()).
		Unit(p.unit).Min(0).Legend(legend).ShowPoints(common.VisibilityModeNever)
	if p.kind == stack {
		b.FillOpacity(30).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal))
	}
	for _, t := range p.targets() {
		b.WithTarget(t)
	}
	return b
}
