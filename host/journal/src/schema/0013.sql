-- The owner of a chain of adapters; NULL is the shared chain. A turn is served by a version of its owner's chain, and its
-- samples train that chain. Each owner has releases of its own and at most one active adapter.
ALTER TABLE turns ADD COLUMN owner TEXT;
ALTER TABLE steps ADD COLUMN owner TEXT;
ALTER TABLE adapters ADD COLUMN owner TEXT;
ALTER TABLE releases ADD COLUMN owner TEXT;
DROP INDEX one_active_adapter;
CREATE UNIQUE INDEX one_active_adapter ON adapters (COALESCE(owner, '')) WHERE state = 'active';
CREATE INDEX steps_of_owner ON steps (owner);
CREATE INDEX releases_of_owner ON releases (owner);
