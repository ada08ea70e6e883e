"""The page at `/`: its files, and the headers that keep it to this server. Knows nothing of models."""

from graphml.server.page.page_files import POLICY as POLICY
from graphml.server.page.page_files import page_routes as page_routes
