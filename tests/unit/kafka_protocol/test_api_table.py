from conf.kafka_api_table import PAGE, with_table


def test_the_table_of_apis_on_the_page_is_current():
    page = PAGE.read_text()
    assert with_table(page) == page, "run make docs"
