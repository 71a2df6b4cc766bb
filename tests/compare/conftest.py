from tests.discovered import discovered_once as discovered_once
