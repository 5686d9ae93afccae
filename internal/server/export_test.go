package server

import "time"

// SetHeartbeat makes streams that begin afterwards say more often that they are
// alive.
func (s *Server) SetHeartbeat(every time.Duration) { s.heartbeat = every }
