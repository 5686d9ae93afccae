package main

import (
	"embed"
	"fmt"
)

//go:embed *.patch
var patches embed.FS

// A bug is one way in which loopd could be broken.
type bug struct {
	id    string
	says  string // what is broken
	edits []edit

	test   test   // the quickest that notices
	faults string // what the fault machine needs to do for it
	hidden string // why the fault machine cannot see it; "": it can
}

// test is a test of the module, or several.
type test struct{ folder, name string }

// bugs are all that we know how to make, each of which some system had.
func bugs() ([]bug, error) {
	all := []bug{
		{id: "M01", test: test{"internal/postgres", "^TestFence$"}, hidden: "the fence on the sequence number holds too"},
		{id: "M02", test: test{"internal/postgres", "^TestTakeOverDuringAnAppend$"}, hidden: "the fence on the sequence number holds too"},
		{id: "M03", test: test{"internal/engine", "^TestCrashAnywhere$/^side_effect$"}, faults: "none"},
		{id: "M04", test: test{"internal/tool", "^TestBrokenConnectionIsNeverSentTwice$"}, faults: "none"},
		{id: "M05", test: test{"internal/tool", "^TestSlowBodyTimesOut$"}, faults: "none"},
		{id: "M06", test: test{"internal/postgres", "^TestUnknownOutcomeOfAnAppend$"}, faults: "commit reply cut"},
		{id: "M07", test: test{"internal/postgres", "^TestAppendAndRead$"}, faults: "none"},
		{id: "M08", test: test{"internal/loop", "^TestScenarios$/^cost_"}, hidden: "Postgres refuses a hold that the account cannot carry"},
		{id: "M09", test: test{"internal/engine", "^TestApprovalOfOtherArgumentsIsDropped$"}, faults: "none"},
		{id: "M10", test: test{"cmd/loopd", "^TestPostgresConforms$"}, hidden: "the API has one tenant"},
		{id: "M11", test: test{"cmd/loopd", "^TestPostgresConforms$"}, faults: "none"},
		{id: "M12", test: test{"internal/engine", "^TestCrashAnywhere$/^cancel$"}, faults: "none"},
		{id: "M13", test: test{"internal/provider/openai", "^TestConformance$"}, faults: "none"},
		{id: "M14", test: test{"cmd/loopd", "^TestPostgresConforms$"}, faults: "kill"},
		{id: "M15", test: test{"internal/loop", "^TestScenarios$/^twin_"}, faults: "none"},
	}
	for i := range all {
		text, err := patches.ReadFile(all[i].id + ".patch")
		if err != nil {
			return nil, fmt.Errorf("read the patch of %s: %w", all[i].id, err)
		}
		all[i].says, all[i].edits = parsePatch(string(text))
	}
	return all, nil
}
