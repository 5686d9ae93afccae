package loop

import (
	"fmt"
	"strings"
	"testing"
)

// TestChantHears: a chant is heard soon after it begins, however it is cut into
// fragments, and a text that only looks like one is not.
func TestChantHears(t *testing.T) {
	t.Parallel()
	words := "and again I look at the order, which I have seen; "
	for name, c := range map[string]struct {
		text string
		by   int // heard before so many bytes; 0: never
	}{
		"the same words":              {sane(2000, 0) + strings.Repeat(words, 200), 2000 + 700},
		"one syllable":                {"Well, " + strings.Repeat("ha ", 4000), 400},
		"in two languages":            {strings.Repeat("größer und größer wird es, so far; ", 300), 600},
		"a long paragraph":            {sane(600, 0) + strings.Repeat(sane(450, 0), 30), 7000},
		"line by line":                {strings.Repeat("I will look at the order now.\n", 300), 600},
		"after a list":                {"- one\n- two\n\n" + strings.Repeat(words, 40), 700},
		"after a code block":          {"```\nx := 1\n```\n" + strings.Repeat(words, 40), 700},
		"in bold":                     {strings.Repeat("**Note:** the order is on its way to you now.\n", 40), 700},
		"blanks":                      {`{"a":` + strings.Repeat(" \n\t", 4000), 4300},
		"sentences":                   {sane(20_000, 0), 0},
		"sentences that look alike":   {numbered(300, "Order %d was packed and has been sent to its customer. "), 0},
		"a refrain":                   {refrain(), 0},
		"a song that counts":          {numbered(99, "%[1]d green bottles hanging on the wall, %[1]d green bottles hanging on the wall. "), 0},
		"a bullet list":               {strings.Repeat("- "+words+"\n", 200), 0},
		"a numbered list":             {strings.Repeat("1. "+words+"\n", 200), 0},
		"headings of lists":           {strings.Repeat("The next order of this customer:\n- sent\n\n", 60), 0},
		"stars":                       {strings.Repeat("* "+words+"\n", 200), 0},
		"a table":                     {strings.Repeat("| pending | pending | pending | pending | pending |\n", 200), 0},
		"a quotation":                 {strings.Repeat("> "+words+"\n", 200), 0},
		"code in a fence":             {"```go\n" + strings.Repeat("	fmt.Println(\"the same line again\")\n", 400) + "```\n", 0},
		"code in another":             {"~~~\n" + strings.Repeat("the same line again, and again\n", 400) + "~~~\n", 0},
		"indented code":               {"So:\n" + strings.Repeat("    the same line again, and again\n", 400), 0},
		"JSON":                        {`{"results":[` + strings.Repeat(`{"ok":true,"error":null,"state":"pending"},`, 200), 0},
		"JSON over lines":             {"[\n" + strings.Repeat("  \"pending\",\n", 800), 0},
		"a matrix":                    {strings.Repeat("0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n", 400), 0},
		"rules between sections":      {numbered(60, "Section %d. This one is short.\n"+strings.Repeat("=", 70)+"\n"), 0},
		"a rule after each sentence":  {numbered(60, "%d was short. "+strings.Repeat("=", 70)+" "), 0},
		"blanks to fill in":           {numbered(40, "Name %d: "+strings.Repeat("_", 80)+"\n"), 0},
		"dots to a page":              {numbered(60, "Chapter %[1]d "+strings.Repeat(".", 70)+" %[1]d\n"), 0},
		"a form letter, eleven times": {numbered(11, "Dear customer %d, we are sorry for the delay. Your order is on its way.\n"), 0},
	} {
		for _, size := range []int{1, 7, 50, 333, 1 << 20} {
			var chant Chant
			heard := 0
			for from := 0; from < len(c.text) && heard == 0; from += size {
				if to := min(from+size, len(c.text)); chant.Add(c.text[from:to]) {
					heard = to
				}
			}
			switch {
			case c.by == 0 && heard > 0:
				t.Errorf("%s, in pieces of %d: heard %q after %d bytes", name, size, chant.Words(), heard)
			case c.by > 0 && (heard == 0 || size < 500 && heard > c.by+size):
				t.Errorf("%s, in pieces of %d: heard after %d bytes, want before %d", name, size, heard, c.by)
			}
		}
	}
}

// TestChantsInRecordings: nothing that a model really said, nor what tools really
// answered, is taken for a chant, while it is written or as a whole.
func TestChantsInRecordings(t *testing.T) {
	t.Parallel()
	var answers, results []string
	for _, run := range readTrajectories(t, answersFile) {
		answers = append(answers, run.Answers...)
	}
	runs, _ := recorded(t)
	for _, run := range runs {
		for _, step := range run.Steps {
			for _, r := range step.Results {
				results = append(results, r.Text)
			}
		}
	}
	heard := func(texts []string) (n, size int) {
		for _, text := range texts {
			var chant Chant
			for from := 0; from < len(text); from += 4 {
				chant.Add(text[from:min(from+4, len(text))])
			}
			if chant.Words() != "" || ChantIn(text) != "" {
				t.Errorf("heard %q in %q", chant.Words(), text)
				n++
			}
			size += len(text)
		}
		return n, size
	}
	n, size := heard(answers)
	t.Logf("%d of %d answers, %d kB", n, len(answers), size>>10)
	if len(answers) != 783 {
		t.Errorf("%d answers are recorded, not 783", len(answers))
	}
	n, size = heard(results)
	t.Logf("%d of %d results of tools, %d kB", n, len(results), size>>10)
}

// sane is prose of at least so many bytes that goes on to something new, or looks so.
func sane(size, seed int) string {
	var b strings.Builder
	things := []string{"the parcel", "a customer", "our warehouse", "the carrier", "this refund", "your letter", "one colleague"}
	verbs := []string{"has reached", "is waiting for", "was sent to", "will ask about", "has never seen", "stands beside"}
	for i := seed; b.Len() < size; i++ {
		n := i * 7919 % 10007
		fmt.Fprintf(&b, "%s %s %s, number %d. ", things[n%7], verbs[n/7%6], things[n/42%7], n)
	}
	return b.String()
}

func numbered(n int, line string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, line, i)
	}
	return b.String()
}

// refrain is a poem of twelve verses with the same four lines between them.
func refrain() string {
	var b strings.Builder
	for i := range 12 {
		b.WriteString(sane(300, 1000*i))
		b.WriteString("\nO the wind and the rain, and the rain and the wind,\nand it rains on the hill every day,\nO the wind and the rain, and the rain and the wind,\nand it rains till the hill is away.\n")
	}
	return b.String()
}

// BenchmarkChant listens to an answer that comes in fragments of one token.
func BenchmarkChant(b *testing.B) {
	text := sane(16<<10, 0)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		var chant Chant
		for from := 0; from < len(text); from += 4 {
			if chant.Add(text[from:min(from+4, len(text))]) {
				b.Fatal("prose is taken for a chant")
			}
		}
	}
}
