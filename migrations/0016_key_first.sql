-- Lookups of a run by its key, before there are statistics.
--
-- On a table that was never analyzed the planner finds all indexes that begin with the
-- tenant and have the run's id somewhere equally cheap, and takes the one made last. Of
-- runs that was runs_list_agent: each append, and each foreign key's check, read the
-- entries of all runs of the tenant. Building the primary key's index anew makes it the
-- last. Nothing else changes; nobody is stopped.

-- +goose NO TRANSACTION
-- +goose Up

REINDEX INDEX CONCURRENTLY runs_pkey;
