package server

import "time"

// SetHeartbeat makes streams that begin afterwards say more often that they are
// alive.
func (s *Server) SetHeartbeat(every time.Duration) { s.heartbeat = every }

// SetPatience makes streams that begin afterwards cut readers that take nothing for so long.
func (s *Server) SetPatience(most time.Duration) { s.patience = most }
