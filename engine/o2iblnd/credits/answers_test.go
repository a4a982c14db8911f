package credits_test

import (
	"testing"

	"o2ibd/engine/o2iblnd/credits"
	"o2ibd/engine/wire"
)

// TestAnswersGoWithoutCredits: in both versions an answer has a receive of its own at the peer, so a node
// that has no credit left can still give answers; nothing else may go.
func TestAnswersGoWithoutCredits(t *testing.T) {
	for _, v := range []wire.Version{wire.Version1, wire.Version2} {
		c := credits.New(v, 8, credits.HighWater(v, 8, 4, 8), 8)
		c.Credits = 0
		if got := c.MaySend(false, false); got != credits.OK {
			t.Errorf("version %#x: an answer without credits: %v", uint16(v), got)
		}
		if got := c.MaySend(true, false); got != credits.NoCredits {
			t.Errorf("version %#x: a message without credits: %v", uint16(v), got)
		}
	}
}
