package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"o2ibd/app"
	"o2ibd/engine"
)

func (s *server) apiQueryPeer(w http.ResponseWriter, r *http.Request) error {
	var q app.PeerRequest
	if err := body(r, &q); err != nil {
		return err
	}
	who, _ := actor(r)
	ans, err := s.app.QueryPeer(r.Context(), who, q)
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, ans)
}

func (s *server) apiDeletePeer(w http.ResponseWriter, r *http.Request) error {
	var q app.PeerRequest
	if err := body(r, &q); err != nil {
		return err
	}
	who, _ := actor(r)
	if err := s.app.DeletePeer(r.Context(), who, q); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) apiCloseConns(w http.ResponseWriter, r *http.Request) error {
	var q app.PeerRequest
	if err := body(r, &q); err != nil {
		return err
	}
	who, _ := actor(r)
	ans, err := s.app.CloseConns(r.Context(), who, q)
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, ans)
}

// peerOf finds the peer that an address of the page names.
func peerOf(r *http.Request, snap *engine.Snapshot) (*engine.Peer, error) {
	id, err := url.PathUnescape(chi.URLParam(r, "id"))
	if err != nil {
		id = chi.URLParam(r, "id")
	}
	for i := range snap.Peers {
		if snap.Peers[i].ID == id {
			return &snap.Peers[i], nil
		}
	}
	return nil, &statusError{http.StatusNotFound, "no peer " + clip(id) + " is known: it may have been forgotten, or never have been in contact"}
}

func (s *server) apiMessages(w http.ResponseWriter, r *http.Request) error {
	p, err := peerOf(r, s.app.Snapshot())
	if err != nil {
		return err
	}
	m, err := s.app.Recent(r.Context(), p.ID)
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, m)
}

// messagesPatience is how long a page waits for the last messages: the rest of it is worth more.
const messagesPatience = 2 * time.Second

// messagesOf gives the last messages with a peer for its page, or why they are not there.
func (s *server) messagesOf(ctx context.Context, peer string) (m app.Messages, failed string) {
	ctx, cancel := context.WithTimeout(ctx, messagesPatience)
	defer cancel()
	m, err := s.app.Recent(ctx, peer)
	if err != nil {
		return app.Messages{}, "The last messages cannot be shown: " + err.Error() + "."
	}
	return m, ""
}

func (s *server) deletePeerForm(w http.ResponseWriter, r *http.Request) error {
	p, err := peerOf(r, s.app.Snapshot())
	if err != nil {
		return err
	}
	who, _ := actor(r)
	if err := s.app.DeletePeer(r.Context(), who, app.PeerRequest{NID: p.NID.String(), NI: p.NI.String()}); err != nil {
		return err
	}
	return s.back(w, r, "/peers", fmt.Sprintf("%v is forgotten. Traffic will connect to it again.", p.NID))
}

func (s *server) closeConnsForm(w http.ResponseWriter, r *http.Request) error {
	p, err := peerOf(r, s.app.Snapshot())
	if err != nil {
		return err
	}
	who, _ := actor(r)
	ans, err := s.app.CloseConns(r.Context(), who, app.PeerRequest{NID: p.NID.String(), NI: p.NI.String()})
	if err != nil {
		return err
	}
	return s.back(w, r, "/peers/"+url.PathEscape(p.ID), fmt.Sprintf("Connections of %v that were closed: %d. Traffic will make new ones.", p.NID, ans.Closed))
}
