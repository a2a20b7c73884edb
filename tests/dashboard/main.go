// Checks a dashboard by the types that Grafana generates from its schema: a field of the dashboard, of a panel or of a query that they do
// not know, and one that they require and that is missing, are errors. Values that are one of a list are not checked. Grafana itself
// imports such a file without an error, and shows a panel that lacks something.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func check(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	plugins.RegisterDefaultPlugins()
	board := dashboard.Dashboard{}
	// It also returns a list of errors that is empty.
	if err := board.UnmarshalJSONStrict(text); err != nil && err.Error() != "" {
		return err
	}
	fmt.Printf("%s: %d panels\n", path, len(board.Panels))
	return nil
}

func main() {
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			fmt.Fprintf(os.Stderr, "%s:\n%v\n", path, err)
			os.Exit(1)
		}
	}
}
