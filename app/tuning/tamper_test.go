package tuning_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3"

	"o2ibd/store"
)

// Whoever alters the database behind the appliance's back is found out, with the first record that is wrong.
func TestVerifyFindsAlterations(t *testing.T) {
	const free = `DROP TRIGGER tunable_history_no_update; DROP TRIGGER tunable_history_no_delete; DROP TRIGGER tunable_history_in_order;`
	for name, tc := range map[string]struct {
		sql  string
		seq  int64
		says string
	}{
		"a reason":                {free + `UPDATE tunable_history SET reason = 'mine' WHERE seq = 3`, 3, "it was altered"},
		"a value in a body":       {free + `UPDATE tunable_history SET body = replace(body, '"16"', '"17"') WHERE seq = 2`, 2, "it was altered"},
		"a record less":           {free + `PRAGMA foreign_keys = 0; DELETE FROM tunable_history WHERE seq = 4`, 4, "it is missing"},
		"the end less":            {free + `PRAGMA foreign_keys = 0; DELETE FROM tunable_history WHERE seq = 6`, 6, "it is missing"},
		"a value in force":        {`UPDATE tunable_values SET value = '99' WHERE name = 'timeout'`, 6, "the values in force are not those that the history leads to"},
		"the table of settings":   {`UPDATE tunable_history_settings SET value = '99' WHERE seq = 4`, 4, "the table of its settings says something else"},
		"a setting in that table": {`INSERT INTO tunable_history_settings VALUES ('tos', 'global', 5, 'proposed', '1')`, 5, "the table of its settings says something else"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, nil)
			h.must(changes("peer_credits", "16"))
			h.must(changes("timeout", "0"))
			h.must(changes("keepalive", "7"))
			if v, err := h.Verify(t.Context()); err != nil || !v.Whole || v.Records != 6 || v.Seq != 0 {
				t.Fatalf("%+v, %v", v, err)
			}
			h.store.Close()
			db, err := sql.Open("sqlite3", "file:"+filepath.Join(h.dir, store.DatabaseName))
			if err != nil {
				t.Fatal(err)
			}
			_, err = db.Exec(tc.sql)
			db.Close()
			if err != nil {
				t.Fatal(err)
			}
			h.start()
			v, err := h.Verify(t.Context())
			if err != nil || v.Whole || v.Seq != tc.seq || !strings.Contains(v.Problem, tc.says) {
				t.Errorf("%+v, %v, want record %d: %s", v, err, tc.seq, tc.says)
			}
		})
	}
}
