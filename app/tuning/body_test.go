package tuning_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
)

func TestPatchBody(t *testing.T) {
	for _, tc := range []struct{ name, body, want string }{
		{"list", `{"changes":[{"scope":"o2ib1","name":"peer_credits","value":16},{"name":"tos","value":null}],"reason":"r","dry_run":true}`, "o2ib1/peer_credits=16 tos=unset"},
		{"short", `{"changes":{"peer_credits":"16","cksum":true,"timeout":null,"o2ib1/tos":-1}}`, "peer_credits=16 cksum=1 timeout=unset o2ib1/tos=-1"},
		{"named twice is kept for the check", `{"changes":{"ntx":1,"ntx":2}}`, "ntx=1 ntx=2"},
		{"text value", `{"changes":{"ipif_name":"ib1","cksum_char":"unsigned"}}`, "ipif_name=ib1 cksum_char=unsigned"},
		{"none", `{"changes":null}`, ""},
		{"no value", `{"changes":[{"name":"tos"}]}`, "error: changes[0]: no value: give one, or null to unset"},
		{"unknown key", `{"changes":[{"name":"tos","value":1,"vlaue":2}]}`, "error: changes[0]"},
		{"list as value", `{"changes":{"tos":[1]}}`, `error: changes: "tos": a tunable's value is a number, a string or null`},
		{"text", `{"changes":"tos=1"}`, "error: changes: a list"},
		{"list of text", `{"changes":["tos=1"]}`, "error: changes[0]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p tuning.Patch
			err := json.Unmarshal([]byte(tc.body), &p)
			if want, bad := strings.CutPrefix(tc.want, "error: "); bad {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
				return
			}
			var got []string
			for _, c := range p.Request().Changes {
				v := "unset"
				if c.Value != nil {
					v = string(*c.Value)
				}
				got = append(got, tunables.Scoped{Scope: c.Scope, Name: c.Name}.String()+"="+v)
			}
			if err != nil || strings.Join(got, " ") != tc.want {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	var p tuning.Patch
	if err := json.Unmarshal([]byte(`{"changes":{"ntx":1},"reason":"r","dry_run":true,"confirm_within_s":1.5}`), &p); err != nil {
		t.Fatal(err)
	}
	if r := p.Request(); r.Reason != "r" || !r.DryRun || r.ConfirmWithin != 1500*time.Millisecond {
		t.Errorf("%+v", r)
	}
	for in, want := range map[tuning.Scalar]string{"16": "16", "-1": "-1", "0": "0", "ib0": `"ib0"`, "": `""`, "007": `"007"`, "1e3": `"1e3"`, "12345678901234567890": `"12345678901234567890"`} {
		b, err := json.Marshal(in)
		var back tuning.Scalar
		if err != nil || string(b) != want || json.Unmarshal(b, &back) != nil || back != in {
			t.Errorf("%q → %s → %q, %v", in, b, back, err)
		}
	}
}

func FuzzChanges(f *testing.F) {
	f.Add(`[{"scope":"o2ib1","name":"peer_credits","value":16}]`)
	f.Add(`{"peer_credits":16,"o2ib1/tos":null}`)
	f.Add(`{"a":[{"b":{}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var c tuning.Changes
		if json.Unmarshal([]byte(text), &c) != nil {
			return
		}
		for _, ch := range c {
			if ch.Value == nil {
				continue
			}
			b, err := json.Marshal(ch.Value)
			var back tuning.Scalar
			if err != nil || json.Unmarshal(b, &back) != nil || back != tuning.Scalar(strings.ToValidUTF8(string(*ch.Value), "\ufffd")) {
				t.Fatalf("%q → %s → %q, %v", *ch.Value, b, back, err)
			}
		}
	})
}
