package app

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"o2ibd/app/config"
)

// A self-made certificate lives as long as browsers take, and is made anew at a start that finds it near its
// end or without a name that it should have.
const (
	certLife  = 397 * 24 * time.Hour
	certRenew = 30 * 24 * time.Hour
	certFile  = "self-made.crt"
	keyFile   = "self-made.key"
)

// ownCertificate finds the self-made certificate in the state folder, or makes one for the names and
// addresses under which the page may be reached.
func ownCertificate(c config.Config, hostname string, now time.Time) (cert, key, fingerprint string, err error) {
	cert, key = filepath.Join(c.State, certFile), filepath.Join(c.State, keyFile)
	names, err := pageNames(c, hostname)
	if err != nil {
		return "", "", "", err
	}
	if pair, err := tls.LoadX509KeyPair(cert, key); err == nil {
		fits := pair.Leaf.NotAfter.Sub(now) > certRenew && !pair.Leaf.NotBefore.After(now)
		for _, n := range names {
			fits = fits && pair.Leaf.VerifyHostname(n) == nil
		}
		if fits {
			return cert, key, fingerprintOf(pair.Leaf.Raw), nil
		}
	}
	der, private, err := makeCertificate(names, now)
	if err != nil {
		return "", "", "", fmt.Errorf("make a certificate: %w", err)
	}
	// The key first: a certificate without its key is made anew, and a key is never readable by others.
	for _, f := range []struct {
		path, kind string
		data       []byte
	}{{key, "PRIVATE KEY", private}, {cert, "CERTIFICATE", der}} {
		if err := replaceFile(f.path, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.data})); err != nil {
			return "", "", "", fmt.Errorf("store the self-made certificate: %w", err)
		}
	}
	return cert, key, fingerprintOf(der), nil
}

// pageNames are the names and addresses in the certificate, each once.
func pageNames(c config.Config, hostname string) ([]string, error) {
	names := append([]string{"localhost", "127.0.0.1", "::1", hostname}, c.AllowedHosts...)
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: an address and a port are wanted, such as %s", c.Listen, config.DefaultListen)
	}
	if addr, err := netip.ParseAddr(host); host != "" && (err != nil || !addr.IsUnspecified()) {
		names = append(names, host)
	} else {
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return nil, fmt.Errorf("addresses of this host: %w", err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
				names = append(names, p.Addr().String())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func makeCertificate(names []string, now time.Time) (der, private []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	t := x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "o2ibd self-made"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certLife), // clocks differ
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	for _, n := range names {
		if addr := net.ParseIP(n); addr != nil {
			t.IPAddresses = append(t.IPAddresses, addr)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	if der, err = x509.CreateCertificate(rand.Reader, &t, &t, &key.PublicKey, key); err != nil {
		return nil, nil, err
	}
	private, err = x509.MarshalPKCS8PrivateKey(key)
	return der, private, err
}

// replaceFile writes a file that only we may read, whole or not at all.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone by its new name, if all went well
	_, err = f.Write(data)
	if serr := f.Sync(); err == nil {
		err = serr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// fingerprintOf is what browsers show of a certificate.
func fingerprintOf(der []byte) string {
	sum := sha256.Sum256(der)
	parts := make([]string, len(sum))
	for i, b := range sum {
		parts[i] = fmt.Sprintf("%02X", b)
	}
	return "SHA-256 " + strings.Join(parts, ":")
}
