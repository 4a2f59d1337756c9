package kingtide_test

import (
	"fmt"
	"os"
	"path/filepath"

	kingtide "github.com/kingtide/kingtide/go"
)

func Example() {
	dir, _ := os.MkdirTemp("", "kingtide")
	defer os.RemoveAll(dir)
	db, err := kingtide.Open(filepath.Join(dir, "tide.db"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()

	batch := kingtide.NewBatch()
	batch.Put(db.Family, []byte("moon"), []byte("full"))
	batch.Put(db.Family, []byte("tide"), []byte("high"))
	if err := db.Write(batch); err != nil {
		fmt.Println(err)
	}
	for entry, err := range db.Scan(kingtide.Range{}) {
		fmt.Printf("%s = %s %v\n", entry.Key, entry.Value, err)
	}
	// Output:
	// moon = full <nil>
	// tide = high <nil>
}
