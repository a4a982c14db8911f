package app

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"
)

// Cost of a password hash, as OWASP advises for argon2id. A hash says its own cost, so that these may grow.
const (
	argonMemory = 19 << 10 // KiB
	argonTime   = 2
	argonLanes  = 1
	argonKey    = 32
	argonSalt   = 16
)

// hashers bounds the memory of passwords that are being checked at once.
const hashers = 2

// passwords hashes and checks, a few at a time.
type passwords struct {
	slots chan struct{}
	decoy string // checked where there is no hash, so that both take the same time
}

func newPasswords() *passwords {
	return &passwords{slots: make(chan struct{}, hashers), decoy: hashPassword([]byte("decoy"), make([]byte, argonSalt))}
}

func (p *passwords) enter(ctx context.Context) error {
	select {
	case p.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *passwords) hash(ctx context.Context, password string) (string, error) {
	if err := p.enter(ctx); err != nil {
		return "", err
	}
	defer func() { <-p.slots }()
	salt := make([]byte, argonSalt)
	rand.Read(salt) // never fails
	return hashPassword([]byte(password), salt), nil
}

// check compares a password with its hash; an empty hash has no password.
func (p *passwords) check(ctx context.Context, hash, password string) (bool, error) {
	if len(password) > maxPassword {
		return false, nil
	}
	if err := p.enter(ctx); err != nil {
		return false, err
	}
	defer func() { <-p.slots }()
	known := hash != ""
	if !known {
		hash = p.decoy
	}
	var memory, time uint32
	var lanes uint8
	parts := strings.Split(hash, "$")
	if len(parts) != 6 || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return false, fmt.Errorf("a password hash in the database is of an unknown kind")
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &memory, &time, &lanes); err != nil {
		return false, fmt.Errorf("a password hash in the database cannot be read: %w", err)
	}
	salt, err := base64.RawStdEncoding.DecodeString(parts[4])
	if err != nil {
		return false, fmt.Errorf("a password hash in the database cannot be read: %w", err)
	}
	want, err := base64.RawStdEncoding.DecodeString(parts[5])
	if err != nil {
		return false, fmt.Errorf("a password hash in the database cannot be read: %w", err)
	}
	got := argon2.IDKey([]byte(password), salt, time, memory, lanes, uint32(len(want)))
	return subtle.ConstantTimeCompare(got, want) == 1 && known, nil
}

// hashPassword writes the usual form: $argon2id$v=19$m=…,t=…,p=…$salt$key.
func hashPassword(password, salt []byte) string {
	key := argon2.IDKey(password, salt, argonTime, argonMemory, argonLanes, argonKey)
	b64 := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, argonMemory, argonTime, argonLanes, b64(salt), b64(key))
}
